"""`python -m fedjax_muon` is the command `fedjax-muon`."""

from fedjax_muon.shell.main import main

main()
