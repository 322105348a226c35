"""What is read off a network, or off two kernels.

Every measure takes one network, or a stack of networks with leading axes, which it
keeps in front (`traj.map(measure)` does the same for any function of one network).
"""

from ._kernels import kernel_distance as kernel_distance
from ._kernels import kernel_similarity as kernel_similarity
from ._kernels import ntk as ntk
from ._representations import input_similarity as input_similarity
from ._representations import output_similarity as output_similarity
from ._times import half_time as half_time
from ._weights import WeightNorms as WeightNorms
from ._weights import balance as balance
from ._weights import balance_defect as balance_defect
from ._weights import lam as lam
from ._weights import mode_strengths as mode_strengths
from ._weights import weight_norms as weight_norms
