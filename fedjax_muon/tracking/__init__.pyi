from .backends import (
    json_lines as json_lines,
    mlflow as mlflow,
    tensorboard as tensorboard,
    trackio as trackio,
    wandb as wandb,
)
from .tracker import (
    Record as Record,
    Status as Status,
    Tracker as Tracker,
    follow as follow,
)

__all__: list[str]
