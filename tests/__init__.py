"""Tests, which import what they share by the name of this package."""
