"""Personalization: clients that keep parameters of their own."""

from fedjax_muon.personalization.ditto import ditto
from fedjax_muon.personalization.own_leaves import keep_own
from fedjax_muon.personalization.personal import Personal, params_of_clients

__all__ = ["Personal", "ditto", "keep_own", "params_of_clients"]
