"""History of the counters in the product: what happened in each second, minute, hour and day, in bounded space.

    shard ──► sampler ──► one slice a second ──► minutes ──► hours ──► days        (recorder.py)
              (what has changed)                   │
                                                   ▼
                                          rollups/<tier>-<start>.rollup            (files.py, slices.py)
                                                   │
                                 series: the columns of a chart                    (series.py)

Counters are added up, gauges keep their highest value, latencies are counts in the buckets of `meter.GRID`; so slices
of any length can be merged, and a percentile of a month is as exact as that of a second. Nothing here is on the path of
a message: a thread looks at the state once a second, without the lock and within a budget. What is stored is a view: it
may be deleted, and nothing but the charts is lost.
"""
