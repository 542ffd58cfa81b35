"""What the testbed trains: model, data, optimizer, schedule, and changes during a run."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from checkmate_common.fields import Strict

OptionValue = float | int | bool | list[float]
"""Value of a keyword argument of an optimizer."""
_DEFAULT_OPTIONS: dict[str, OptionValue] = {"lr": 1e-3}


class OptimizerSpec(Strict):
    """Optimizer of the workload."""

    name: Literal["AdamW", "Adam", "SGD", "RMSprop", "Adagrad"] = "AdamW"
    """Class of ``torch.optim``."""
    options: dict[str, OptionValue] = Field(default_factory=lambda: _DEFAULT_OPTIONS.copy())
    """Keyword arguments of the class."""


class ScheduleSpec(Strict):
    """Learning-rate schedule: linear warm-up, then a cosine down to `floor` times the base rate."""

    warmup_steps: int = Field(default=0, ge=0)
    """Steps until the base rate is reached."""
    total_steps: int = Field(default=1000, ge=1)
    """Step at which the floor is reached."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Last factor of the base rate."""


ParameterPattern = Annotated[str, Field(pattern=r"^[^\s]{1,512}$")]
"""Name of a parameter of the model, or a pattern with ``*`` and ``?``."""


class ChangeSpec(Strict):
    """A change that takes effect at a step."""

    step: int = Field(ge=2)
    """First step trained with the change."""
    optimizer: OptimizerSpec | None = None
    """Optimizer from then on. The same class keeps its state and takes the options; another class starts afresh."""
    train: list[ParameterPattern] = Field(default_factory=list)
    """Frozen parameters that are trained from then on, as a separate parameter group."""
    options: dict[str, OptionValue] = Field(default_factory=dict)
    """Keyword arguments of that group that differ from the optimizer's."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.optimizer is None and not self.train:
            raise ValueError("expected an optimizer, or parameters to train")
        if self.options and not self.train:
            raise ValueError("options apply to a new group: expected parameters to train")
        return self


class Workload(Strict):
    """What the testbed trains: an MLP on scikit-learn's digits data set."""

    kind: Literal["digits-mlp"] = "digits-mlp"
    """The only workload so far."""
    hidden: list[Annotated[int, Field(ge=1, le=65536)]] = Field(default_factory=lambda: [128, 64], max_length=16)
    """Widths of the hidden layers."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout after each hidden layer (so that the ranks' RNG states matter)."""
    batch_size: int = Field(default=256, ge=1)
    """Global batch size, divided among the ranks."""
    bucket_bytes: int = Field(default=25 * 1024 * 1024, ge=4)
    """Cap of a gradient bucket in bytes (DDP's bucket_cap_mb)."""
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    """Optimizer."""
    schedule: ScheduleSpec = Field(default_factory=ScheduleSpec)
    """Learning-rate schedule."""
    batch_norm: bool = False
    """Batch normalisation after each hidden layer: buffers that training changes, separate for each rank."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Bound of the gradient's norm (torch.nn.utils.clip_grad_norm_), None for none."""
    frozen: list[ParameterPattern] = Field(default_factory=list)
    """Parameters that are not trained; the job declares them ``constant`` in its section state."""
    changes: list[ChangeSpec] = Field(default_factory=list)
    """Changes during the run, in the order of steps."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        steps = [change.step for change in self.changes]
        if steps != sorted(set(steps)):
            raise ValueError(f"changes at steps {steps}: expected ascending steps, one change each")
        return self
