"""NVIDIA's lines in the kernel log: their grammar, the decoders of their messages, and the code catalogue.

One concern a file: `facts` (names), `lines` (grammar), `messages` and `nvlink` (what a message carries), `catalog`
(the compiled tables), `verdict` (what a code with its message calls for), `losses` (lines without a
code), `words` (sentences for people). The detector in `detectors/xid.py` puts them together.
"""
