"""The color and the line of every method, the same in all figures.

Methods built around Muon have saturated colors. Others are grey, and differ by shade
and dashes.
"""

from typing import NamedTuple


class Line(NamedTuple):
    """How a curve is drawn."""

    color: str  # hexadecimal
    dash: str  # of plotly


MUON = {  # by the label of a method
    "FedMuon": "#d62728",
    "FedMuon(alignment)": "#1f6fd6",
    "FedMuon(bias correction)": "#e8820c",
    "FedMuon-DA": "#8e44ad",
    "Local Muon": "#12a150",
    "MuLoCo": "#00a3b4",
    "FedMuon(SVD)": "#5b5bd6",
    "FedMuon(alignment, own momentum)": "#4aa3ff",
    "FedMuon(unsynced start)": "#ff6b6b",
    "FedMuon(bias correction, Euclidean)": "#c9a400",
    "FedMuon(bias correction, max norm)": "#b5541c",
    "Local Muon(averaged momentum)": "#7bbf2a",
    "LocalMuon(persistent)": "#0b7a4b",
    "D-SGD + Muon": "#d6459b",
    "Gradient tracking + Muon": "#a0307a",
    "DP-Muon": "#7a4b12",  # this and the next ones are of private studies
    "DP-Muon, bias corrected": "#f0a830",
    "DP-FedMuon": "#2f7f7f",
    "Muon at the server": "#6b1fb1",
}
GREYS = ("#868686", "#5f5f5f", "#a9a9a9", "#747474")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
BASELINES = (
    "FedAvg",
    "FedProx",
    "FedNova",
    "SCAFFOLD",
    "FedAdam",
    "FedYogi",
    "FedAdagrad",
    "FedCM",
    "Local AdamW",
    "FedAvg(momentum)",
    "FedAvg(Adam)",
    "SCAFFOLD(momentum)",
    "SCAFFOLD(Adam)",
    "DiLoCo",
    "FedAvg-M",
    "FedAvg-VR",
    "SCAFFOLD-M",
    "SCAFFOLD-VR",
    "PAdaMFed",
    "PAdaMFed-VR",
    "FedLADA",
    "FAFED",
    "STEM",
    "LocalSGDM",
    "Adam-BiClip",
    "Bi2Clip",
    "Local SGD(averaged momentum, alignment)",
    "Local AdamW(averaged momentum, alignment)",
    "Fed-NSGDA-M",
    "FedSGDA-Clip",
    "LocalSGDA",
    "LocalSGDAM",
    "FedSGDA-M",
    "SAGDA",
    "FSGDA",
    "FESS-GDA",
    "D-SGD",
    "Gradient tracking",
    "D-SGDA",
    "DM-HSGD",
    "DP-SGDA (unclipped, no privacy)",
    "DPMixSGD (unclipped, no privacy)",
    "DP-SGDA",
    "DP-FTRL (banded)",
    "DP-FTRL (buffered)",
    "DPMixSGD (clipped)",
    "DPMixSGD (clipped, noise inside)",
    "Private STORM (split clip)",
    "DP-SGD",
    "DP-FTRL",
    "DP-FedAvg",
)


def line_of(label: str) -> Line:
    """Returns how the curves of a method are drawn.

    Args:
      label: What tables call the method, such as "FedMuon(alignment)".

    Returns:
      The same line for the same label, in every figure; a grey one for a label that is
      not in the tables.

    Example:
      >>> line_of("FedMuon")
      Line(color='#d62728', dash='solid')
    """
    if label in MUON:
        return Line(MUON[label], "solid")
    if label in BASELINES:
        number = BASELINES.index(label)
        shade = (number + number // len(DASHES)) % len(GREYS)
        return Line(GREYS[shade], DASHES[number % len(DASHES)])
    number = sum(map(ord, label))
    return Line(GREYS[number % len(GREYS)], DASHES[number % len(DASHES)])


def another(line: Line, number: int) -> Line:
    """Returns a line of the same color, for further curves of one method.

    Args:
      line: Line of the method.
      number: How many curves of the method there are already.

    Returns:
      A line with other dashes, for up to five further curves.

    Example:
      >>> another(line_of("FedMuon"), 1)
      Line(color='#d62728', dash='dash')
    """
    dashes = DASHES.index(line.dash) + number
    return Line(line.color, DASHES[dashes % len(DASHES)])
