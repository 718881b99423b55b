from . import comparison as comparison
from . import metrics_csv as metrics_csv
from . import plots as plots
from . import tables as tables
from .comparison import History as History
from .comparison import Point as Point
from .comparison import Summary as Summary
from .comparison import best as best
from .comparison import mean_curve as mean_curve
from .comparison import score_column as score_column
from .comparison import summarize as summarize
from .comparison import target_score as target_score

__all__: list[str]
