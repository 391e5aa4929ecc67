"""Verified decoding: an answer that the verifier alone decides, whoever drafted it.

`grid`, `rows`, `ending` and `decoding` are the algorithm and know no engine; `facts` and `request` say whether a
request can be answered that way. None of them waits for anything, and importing this package imports none of them.
"""
