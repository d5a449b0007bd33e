"""The management API: trained models listed, exported and brought into a running Triton, over HTTP."""
