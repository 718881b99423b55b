from .event_files import tensorboard as tensorboard
from .line_files import json_lines as json_lines
from .mlflow_runs import mlflow as mlflow
from .tracker import (
    Record as Record,
    Status as Status,
    Tracker as Tracker,
    follow as follow,
)
from .trackio_runs import trackio as trackio
from .wandb_runs import wandb as wandb

__all__: list[str]
