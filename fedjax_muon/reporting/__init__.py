"""Tables, figures and files of results.

`metrics_csv.read` reads the metrics of a run, `summarize` compares methods over seeds,
and `plots` draws curves, rankings, grids and graphs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
