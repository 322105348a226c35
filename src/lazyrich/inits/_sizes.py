"""The sizes every init checks."""


def check_sizes(inputs: int, hidden: int, outputs: int) -> None:
    if min(inputs, hidden, outputs) < 1:
        raise ValueError(
            "`inputs`, `hidden` and `outputs` must be ≥ 1, but they are "
            f"{inputs}, {hidden} and {outputs}."
        )
