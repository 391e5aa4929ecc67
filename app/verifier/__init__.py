"""Verified decoding over the wire: drafts from any replica, passes on the verifier, text from its detokenizer."""
