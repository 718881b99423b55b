from .accounting import (
    ADD_OR_REMOVE as ADD_OR_REMOVE,
    REPLACE_ONE as REPLACE_ONE,
    Accountant as Accountant,
    Adjacency as Adjacency,
    Gaussian as Gaussian,
    Pld as Pld,
    calibrate_noise as calibrate_noise,
    gaussian_epsilon as gaussian_epsilon,
    joint_multiplier as joint_multiplier,
)
from .client_mechanism import AdaptiveClip as AdaptiveClip
from .client_privacy import ClientPrivacy as ClientPrivacy
from .clipping import (
    Clip as Clip,
    Difference as Difference,
    Each as Each,
    Split as Split,
)
from .correlated import (
    Banded as Banded,
    BufferedToeplitz as BufferedToeplitz,
    banded as banded,
    best_banded as best_banded,
    buffered_toeplitz as buffered_toeplitz,
    prefix_errors as prefix_errors,
)
from .guarantees import (
    Guarantee as Guarantee,
    Neighbor as Neighbor,
    PrivacyReport as PrivacyReport,
    PrivacySpec as PrivacySpec,
    TrustedServer as TrustedServer,
    calibrated as calibrated,
    report as report,
)
from .ledger import (
    Cost as Cost,
    Entry as Entry,
    Ledger as Ledger,
    composed_epsilon as composed_epsilon,
    cost_of as cost_of,
    fingerprint as fingerprint,
)
from .releases import (
    Correlated as Correlated,
    Inside as Inside,
    Output as Output,
    Release as Release,
)
from .sampling import (
    Cyclic as Cyclic,
    FullBatch as FullBatch,
    Poisson as Poisson,
    Sampling as Sampling,
)

__all__: list[str]
