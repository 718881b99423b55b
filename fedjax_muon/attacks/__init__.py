"""Attacks on what private training releases."""
