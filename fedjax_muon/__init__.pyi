from . import (
    algorithms as algorithms,
)
from . import (
    attacks as attacks,
)
from . import (
    compression as compression,
)
from . import (
    core as core,
)
from . import (
    data as data,
)
from . import (
    decentralized as decentralized,
)
from . import (
    deploy as deploy,
)
from . import (
    engine as engine,
)
from . import (
    linalg as linalg,
)
from . import (
    minimax as minimax,
)
from . import (
    models as models,
)
from . import (
    personalization as personalization,
)
from . import (
    privacy as privacy,
)
from . import (
    reporting as reporting,
)
from . import (
    simulation as simulation,
)
from . import (
    tasks as tasks,
)
from . import (
    tracking as tracking,
)
from . import (
    transforms as transforms,
)
from .algorithms import (
    adam_biclip as adam_biclip,
)
from .algorithms import (
    bi2clip as bi2clip,
)
from .algorithms import (
    diloco as diloco,
)
from .algorithms import (
    fafed as fafed,
)
from .algorithms import (
    fedadagrad as fedadagrad,
)
from .algorithms import (
    fedadam as fedadam,
)
from .algorithms import (
    fedavg as fedavg,
)
from .algorithms import (
    fedavg_adam as fedavg_adam,
)
from .algorithms import (
    fedavg_m as fedavg_m,
)
from .algorithms import (
    fedavg_momentum as fedavg_momentum,
)
from .algorithms import (
    fedavg_vr as fedavg_vr,
)
from .algorithms import (
    fedcm as fedcm,
)
from .algorithms import (
    fedlada as fedlada,
)
from .algorithms import (
    fedmuon as fedmuon,
)
from .algorithms import (
    fedmuon_align as fedmuon_align,
)
from .algorithms import (
    fedmuon_align_reset as fedmuon_align_reset,
)
from .algorithms import (
    fedmuon_correct as fedmuon_correct,
)
from .algorithms import (
    fedmuon_correct_euclidean as fedmuon_correct_euclidean,
)
from .algorithms import (
    fedmuon_correct_max_norm as fedmuon_correct_max_norm,
)
from .algorithms import (
    fedmuon_svd as fedmuon_svd,
)
from .algorithms import (
    fedmuon_unsynced as fedmuon_unsynced,
)
from .algorithms import (
    fednova as fednova,
)
from .algorithms import (
    fedprox as fedprox,
)
from .algorithms import (
    fedyogi as fedyogi,
)
from .algorithms import (
    local_adamw as local_adamw,
)
from .algorithms import (
    local_adamw_align as local_adamw_align,
)
from .algorithms import (
    local_muon as local_muon,
)
from .algorithms import (
    local_muon_averaged as local_muon_averaged,
)
from .algorithms import (
    local_muon_persistent as local_muon_persistent,
)
from .algorithms import (
    local_sgd_align as local_sgd_align,
)
from .algorithms import (
    local_sgdm as local_sgdm,
)
from .algorithms import (
    muloco as muloco,
)
from .algorithms import (
    padamfed as padamfed,
)
from .algorithms import (
    padamfed_vr as padamfed_vr,
)
from .algorithms import (
    scaffold as scaffold,
)
from .algorithms import (
    scaffold_adam as scaffold_adam,
)
from .algorithms import (
    scaffold_m as scaffold_m,
)
from .algorithms import (
    scaffold_momentum as scaffold_momentum,
)
from .algorithms import (
    scaffold_vr as scaffold_vr,
)
from .algorithms import (
    stem as stem,
)
from .compression import (
    compress as compress,
)
from .compression.compressors import (
    identity as identity,
)
from .compression.compressors import (
    memory_share as memory_share,
)
from .compression.compressors import (
    power_iteration as power_iteration,
)
from .compression.compressors import (
    quantize as quantize,
)
from .compression.compressors import (
    top_k as top_k,
)
from .compression.compressors import (
    truncated_svd as truncated_svd,
)
from .core import (
    Algorithm as Algorithm,
)
from .core import (
    Exchange as Exchange,
)
from .core import (
    Hyper as Hyper,
)
from .core import (
    Model as Model,
)
from .core import (
    Objective as Objective,
)
from .core import (
    Round as Round,
)
from .core import (
    after_first as after_first,
)
from .core import (
    broadcast_params as broadcast_params,
)
from .core import (
    broadcast_state as broadcast_state,
)
from .core import (
    descend as descend,
)
from .core import (
    local_steps as local_steps,
)
from .core import (
    map_exchanges as map_exchanges,
)
from .core import (
    mean_gradient as mean_gradient,
)
from .core import (
    move as move,
)
from .core import (
    no_client_state as no_client_state,
)
from .core import (
    recorded as recorded,
)
from .core import (
    tree as tree,
)
from .core import (
    value_at as value_at,
)
from .core.pair import (
    Pair as Pair,
)
from .data import (
    Dataset as Dataset,
)
from .data import (
    partition as partition,
)
from .decentralized import (
    topology as topology,
)
from .decentralized.simulation import (
    decentralize as decentralize,
)
from .models import (
    load_metadata as load_metadata,
)
from .models import (
    load_params as load_params,
)
from .models import (
    save_params as save_params,
)
from .personalization import (
    ditto as ditto,
)
from .personalization import (
    keep_own as keep_own,
)
from .runs.load import (
    load_run as load_run,
)
from .runs.report import (
    save_report as save_report,
)
from .simulation import (
    NonFiniteError as NonFiniteError,
)
from .simulation import (
    Simulation as Simulation,
)
from .simulation import (
    federate as federate,
)
from .simulation import (
    tune as tune,
)
from .simulation.early_stopping import (
    early_stopping as early_stopping,
)
from .simulation.own_accuracy import (
    own_accuracies as own_accuracies,
)
from .simulation.sweep import (
    Cell as Cell,
)
from .simulation.sweep import (
    sweep as sweep,
)
from .simulation.training import (
    train as train,
)
from .tasks import (
    Batch as Batch,
)
from .tasks import (
    Task as Task,
)

__all__: list[str]
__version__: str
