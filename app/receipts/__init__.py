"""Receipts: what was done for one finished request, signed, so that it can be checked elsewhere and later."""
