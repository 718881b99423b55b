"""`python -m fedjax_muon` is the command `fedjax-muon`."""

from fedjax_muon.cli.main import main

main()
