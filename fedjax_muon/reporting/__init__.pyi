from . import (
    comparison as comparison,
    metrics_csv as metrics_csv,
    plots as plots,
    tables as tables,
)
from .comparison import (
    History as History,
    Point as Point,
    Summary as Summary,
    best as best,
    mean_curve as mean_curve,
    score_column as score_column,
    summarize as summarize,
    target_score as target_score,
)

__all__: list[str]
