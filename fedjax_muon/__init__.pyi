from . import (
    algorithms as algorithms,
    core as core,
    data as data,
    decentralized as decentralized,
    deploy as deploy,
    engine as engine,
    linalg as linalg,
    models as models,
    privacy as privacy,
    problems as problems,
    runs as runs,
    simulation as simulation,
    tasks as tasks,
    tracking as tracking,
    transforms as transforms,
    wrappers as wrappers,
)
from .ahead_of_time import compile_for as compile_for
from .algorithms import minimax as minimax
from .algorithms.diloco import (
    diloco as diloco,
    heloco as heloco,
    muloco as muloco,
    muloco_1 as muloco_1,
    muloco_2 as muloco_2,
    muloco_16 as muloco_16,
    sparseloco as sparseloco,
)
from .algorithms.ef21_muon import ef21_muon as ef21_muon
from .algorithms.fafed import fafed as fafed
from .algorithms.fedadamw import fedadamw as fedadamw
from .algorithms.fedavg import (
    adam_biclip as adam_biclip,
    bi2clip as bi2clip,
    dp_fedmuon as dp_fedmuon,
    fadas as fadas,
    fedadagrad as fedadagrad,
    fedadam as fedadam,
    fedavg as fedavg,
    fedavg_adam as fedavg_adam,
    fedavg_momentum as fedavg_momentum,
    fedavg_server_momentum as fedavg_server_momentum,
    fedyogi as fedyogi,
    local_adamw as local_adamw,
    local_muon as local_muon,
    local_muon_averaged as local_muon_averaged,
    local_sgdm as local_sgdm,
    local_soap as local_soap,
    muonh as muonh,
    ringmaster_lmo as ringmaster_lmo,
)
from .algorithms.fedavg_m import fedavg_m as fedavg_m, fedcm as fedcm
from .algorithms.fedavg_vr import fedavg_vr as fedavg_vr
from .algorithms.fedcomuon import fedcomuon as fedcomuon, fedcomuon_vr as fedcomuon_vr
from .algorithms.feddyn import feddyn as feddyn
from .algorithms.fedexp import fedexp as fedexp
from .algorithms.fedlada import fedlada as fedlada
from .algorithms.fedmuon import fedmuon as fedmuon, fedmuon_unsynced as fedmuon_unsynced
from .algorithms.fedmuon_align import (
    fedmuon_align as fedmuon_align,
    fedmuon_align_reset as fedmuon_align_reset,
    fedmuon_svd as fedmuon_svd,
    fedpac_muon as fedpac_muon,
    fedpac_soap as fedpac_soap,
    local_adamw_align as local_adamw_align,
    local_sgd_align as local_sgd_align,
)
from .algorithms.fedmuon_correct import (
    fedmuon_correct as fedmuon_correct,
    fedmuon_correct_euclidean as fedmuon_correct_euclidean,
    fedmuon_correct_max_norm as fedmuon_correct_max_norm,
)
from .algorithms.fednova import fednova as fednova
from .algorithms.fedprox import fedprox as fedprox
from .algorithms.fedsubmuon import (
    fedsubmuon as fedsubmuon,
    fedsubmuon_gt as fedsubmuon_gt,
)
from .algorithms.local_muon_persistent import (
    local_muon_persistent as local_muon_persistent,
)
from .algorithms.lora import (
    fedex_lora as fedex_lora,
    fedit as fedit,
    fedsa_lora as fedsa_lora,
    ffa_lora as ffa_lora,
    flexlora as flexlora,
    flora as flora,
    rolora as rolora,
)
from .algorithms.padamfed_vr import padamfed_vr as padamfed_vr
from .algorithms.scaffold import (
    scaffold as scaffold,
    scaffold_adam as scaffold_adam,
    scaffold_momentum as scaffold_momentum,
)
from .algorithms.scaffold_m import padamfed as padamfed, scaffold_m as scaffold_m
from .algorithms.scaffold_vr import scaffold_vr as scaffold_vr
from .algorithms.sign_vote import (
    muonsign as muonsign,
    muonusign as muonusign,
    sign_vote as sign_vote,
    signmuon as signmuon,
)
from .algorithms.stem import stem as stem
from .algorithms.streaming_diloco import streaming_diloco as streaming_diloco
from .citing import cite as cite
from .core import (
    Algorithm as Algorithm,
    Exchange as Exchange,
    Hyper as Hyper,
    Objective as Objective,
    ParamsMessage as ParamsMessage,
    Round as Round,
    after_first as after_first,
    broadcast_params as broadcast_params,
    broadcast_state as broadcast_state,
    descend as descend,
    local_steps as local_steps,
    map_exchanges as map_exchanges,
    mean_gradient as mean_gradient,
    move as move,
    no_client_state as no_client_state,
    recorded as recorded,
    tree as tree,
    value_at as value_at,
)
from .core.pair import Pair as Pair
from .data import Dataset as Dataset, partition as partition
from .decentralized import topology as topology
from .decentralized.simulation import decentralize as decentralize
from .models import (
    load_metadata as load_metadata,
    load_params as load_params,
    save_params as save_params,
)
from .runs import (
    compare as compare,
    cosine as cosine,
    simulate as simulate,
    sweep as sweep,
    train as train,
)
from .runs.loading import export as export, load_run as load_run
from .runs.predicting import load_model as load_model
from .simulation import (
    NonFiniteError as NonFiniteError,
    Simulation as Simulation,
    clocks as clocks,
    federate as federate,
    staleness as staleness,
)
from .simulation.arrivals import (
    buffered as buffered,
    fedasync as fedasync,
    replayed as replayed,
)
from .simulation.cohorts import (
    poisson as poisson,
    sampled as sampled,
    timed as timed,
)
from .simulation.sweeps import Cell as Cell, run_cells as run_cells
from .simulation.training import early_stopping as early_stopping, run as run
from .simulation.tuning import tune as tune
from .startup import cache_programs as cache_programs
from .tasks import Batch as Batch, Task as Task
from .wrappers import (
    aggregators as aggregators,
    attacks as attacks,
    compression as compression,
    personalization as personalization,
)
from .wrappers.aggregators import robust as robust
from .wrappers.attacks import attack as attack
from .wrappers.compression import (
    bins as bins,
    chunked_top_k as chunked_top_k,
    compress as compress,
    compress_broadcasts as compress_broadcasts,
    memory_share as memory_share,
    no_compression as no_compression,
    power_iteration as power_iteration,
    quantize as quantize,
    signs as signs,
    top_k as top_k,
    truncated_svd as truncated_svd,
)
from .wrappers.personalization import ditto as ditto, keep_own as keep_own
from .wrappers.secure_sums import secure_sums as secure_sums
from .wrappers.spheres import keep_norms as keep_norms

__all__: list[str]
__version__: str
