"""``reprise lab``: each mechanism of nondeterminism as a small program, with no engine needed."""
