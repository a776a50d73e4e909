"""Charts: pure functions `frame -> altair chart`, one file per chart, tested through `to_dict()`.

Frames hold shares in [0, 1] and one row per mark; their columns are named in each docstring. A chart shows one model
and task as a single layered view, because only such a view can follow the width of the page; pages lay charts out as
panels over a common axis.
"""
