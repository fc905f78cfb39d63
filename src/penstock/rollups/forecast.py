"""A forecast of a series: what was usual at this time of the day or week, at the level of the last one.

`forecast` is pure. The value is the median of the same place in earlier seasons, moved by how much the last season was
above or below what it would have said. The band holds four in five of the errors that it would have made before, and
widens with the root of the seasons ahead. Without two whole seasons it is the median of what there is, with its
spread; without `VALUES_MIN` values there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import median
from typing import Final

from penstock.model_metrics import ForecastBand

VALUES_MIN: Final = 8
SEASONS_MAX: Final = 7  # the earlier seasons that a value is the median of
BAND: Final = (0.1, 0.9)
Values = Sequence[float | None]


def forecast(values: Values, season: int, ahead: int) -> ForecastBand:
    """The `ahead` values after these. `season` is how many values one takes; 1 for none."""
    known = [value for value in values if value is not None]
    if len(known) < VALUES_MIN:
        nothing: list[float | None] = [None] * ahead
        return ForecastBand(value=nothing, low=nothing, high=nothing, is_seasonal=False)
    is_seasonal = season > 1 and len(values) >= 2 * season
    usual = _seasonal(values, season) if is_seasonal else [median(known)]
    errors = _errors(values, season) if is_seasonal else []
    if len(errors) < VALUES_MIN:
        errors = [value - median(known) for value in known]
    shift = _shift(values, usual, season) if is_seasonal else 0.0
    low, high = (_quantile(sorted(errors), share) for share in BAND)
    # Errors say how wrong the usual value is; where they lie all to one side, the band still holds the value.
    middles = [max(0.0, usual[place % len(usual)] + shift) for place in range(ahead)]
    widths = [sqrt(1 + place // max(1, season)) for place in range(ahead)]
    return ForecastBand(
        value=[round(value, 4) for value in middles],
        low=[round(max(0.0, v + min(0.0, low) * w), 4) for v, w in zip(middles, widths, strict=True)],
        high=[round(v + max(0.0, high) * w, 4) for v, w in zip(middles, widths, strict=True)],
        is_seasonal=is_seasonal,
    )


def _seasonal(values: Values, season: int) -> list[float]:
    """For each place of the season that comes next, the median of that place before."""
    everything = median(value for value in values if value is not None)
    end = len(values)
    return [_usual(values, end + place, season, everything) for place in range(season)]


def _usual(values: Values, place: int, season: int, otherwise: float) -> float:
    """The median of the same place in the seasons before, as far as they are known."""
    places = range(place - season, max(-1, place - season * (SEASONS_MAX + 1)), -season)
    same = [value for before in places if (value := values[before]) is not None]
    return median(same) if same else otherwise


def _errors(values: Values, season: int) -> list[float]:
    """How far each value was from what the seasons before it say."""
    missing = float("nan")
    pairs = ((values[place], _usual(values, place, season, missing)) for place in range(season, len(values)))
    return [value - usual for value, usual in pairs if value is not None and usual == usual]  # noqa: PLR0124 - NaN


def _shift(values: Values, usual: Sequence[float], season: int) -> float:
    """How much the last season was above what is usual; the median, so that one spike moves nothing."""
    last = [(value, usual[place]) for place, value in enumerate(values[-season:]) if value is not None]
    return median(value - before for value, before in last) if last else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
