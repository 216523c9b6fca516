"""How good a schedule is: beside a lower bound that knows no schedule, and beside schedules for a device or a cost that is changed.

`work.py` says what a layer asks of the engines (`engine.py`: of the matrix engine, however it is cut), `bound.py` what no schedule can undercut, `measures.py` what a schedule loses,
`what_if.py` which one change would help most, `words.py` says all that.
"""

from libnpu.compiler.quality.bound import LowerBound, lower_bound
from libnpu.compiler.quality.measures import measures
from libnpu.compiler.quality.what_if import what_ifs
from libnpu.compiler.quality.words import explain

__all__ = ["LowerBound", "explain", "lower_bound", "measures", "what_ifs"]
