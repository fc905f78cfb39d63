"""Every limit in one place, with the relations between them asserted."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# One message (FEATURES A5).
payload_bytes_max: Final = 10 * MIB
key_bytes_max: Final = 64 * KIB
headers_bytes_max: Final = 64 * KIB
dedup_key_bytes_max: Final = 1 * KIB
trace_bytes_max: Final = 256
error_bytes_max: Final = 4 * KIB
pause_reason_characters_max: Final = 500
timelines_max: Final = 100  # of one search by key or trace id
look_back_default: Final = 100_000  # messages that such a search looks at
look_back_max: Final = 10_000_000
retry_error_characters_max: Final = 500  # of the last error of a message that waits; its events have all of it
priority_max: Final = 255
priority_default: Final = 128
attempts_max: Final = 65_535
delay_seconds_max: Final = 100 * 366 * 86_400
instant_us_max: Final = 253_402_300_799_999_999  # the last µs of the year 9999, which a datetime can still hold
name_length_max: Final = 128
masked_fields_max: Final = 100
masked_field_length_max: Final = 256

# One batch, one frame, one journal file.
batch_messages_max: Final = 1_000_000
batch_bytes_max: Final = 16 * MIB
frame_bytes_max: Final = 32 * MIB
journal_file_bytes: Final = 64 * MIB
journal_file_frames_max: Final = 200_000
# What may be configured.
journal_file_bytes_range: Final = (1 * MIB, 1 * GIB)
journal_file_frames_range: Final = (1_000, 10_000_000)
journal_files_unsealed_max: Final = 16
compression_threshold_bytes: Final = 16 * KIB
compression_saving_min: Final = 0.05

# Delivery.
lease_messages_max: Final = 100_000
lease_names_max: Final = 10_000  # queues and prefixes in one lease over several queues
lease_queues_max: Final = 64  # that one such lease takes messages from
lease_quantum: Final = 16  # messages of a queue before it is the turn of the next, at least
lease_sharers: Final = 4  # queues that share such a lease, as long as each has enough
queue_sets_max: Final = 1_000  # kept between two such leases
queue_set_seconds: Final = 60.0
lease_seconds_default: Final = 30.0
lease_seconds_min: Final = 0.001
lease_seconds_max: Final = 12 * 3600.0
wait_seconds_max: Final = 60.0
max_attempts_default: Final = 5
partitions_max: Final = 65_536
parked_messages_max: Final = 100_000
per_second_min: Final = 0.001
per_second_max: Final = 1e9
burst_max: Final = 1_000_000_000
buckets_max: Final = 1_000_000  # of one limit of a queue, for as many keys or clients
timers_near_max: Final = 1_000_000
dedup_keys_max: Final = 10_000_000
dedup_seconds_default: Final = 86_400.0
producers_max: Final = 100_000
producer_window: Final = 1_024  # sequences up to the highest whose answers are remembered
producer_answers_bytes_max: Final = 4 * MIB  # of one producer, beside 28 bytes for each push
producer_idle_seconds: Final = 86_400.0
sinks_max: Final = 100_000
sink_bytes_max: Final = 256  # of the name of a sink
starvation_seconds_default: Final = 30.0
group_expiry_seconds_default: Final = 30 * 86_400.0
session_seconds_default: Final = 10.0
session_seconds_min: Final = 0.1
session_seconds_max: Final = 3600.0
rebalance_seconds: Final = 60.0  # how long a member may take to release a partition
heartbeats_per_session: Final = 3

# Tasks and workers.
task_page_max: Final = 1_000
suggestions_max: Final = 100
workflow_page_max: Final = 100
task_filter_bytes_max: Final = 4 * KIB  # of one value that is looked for
worker_names_max: Final = 10_000  # of queues, and of kinds of tasks
workers_max: Final = 10_000
grants_max: Final = 1_000  # of a principal or a role
grant_length_max: Final = 300
quota_max: Final = 2**62
worker_heartbeat_seconds: Final = 15.0
worker_dead_seconds: Final = 30.0  # of silence
worker_shown_seconds: Final = 600.0  # as dead, before it is forgotten
worker_news_seconds: Final = 60.0  # how long a piece of news is repeated

# Tasks.
task_result_bytes_max: Final = 1 * MIB  # the default
task_result_bytes_range: Final = (64 * KIB, payload_bytes_max)  # what it can be set to
task_attempts_lost_max: Final = 10  # attempts at a task that may be lost with their workers; the last is its end
task_progress_bytes_max: Final = 64 * KIB
task_error_bytes_max: Final = 64 * KIB  # of a traceback; what the events table keeps of it is shorter
task_parents_max: Final = 100_000
task_retention_seconds: Final = 7 * 86_400.0  # how long the task index keeps those that are final
tasks_submitted_max: Final = 100_000  # in one call, when some of them wait for others or are unique
tasks_held_max: Final = 1_000_000  # that wait for parents
tasks_held_bytes_max: Final = 256 * MIB
tasks_withdrawn_max: Final = 50_000  # cancelled while they waited for parents, and kept to be retried
tasks_withdrawn_bytes_max: Final = 8 * MIB
unique_keys_max: Final = 1_000_000
schedules_max: Final = 10_000
operations_running_max: Final = 16
operations_waiting_max: Final = 100  # after their canaries
operation_waiting_seconds_max: Final = 86_400.0  # until one that nobody continues is stopped
operations_kept: Final = 100  # that are over
schedule_bytes_max: Final = 64 * KIB
schedule_grace_seconds: Final = 60.0  # a tick that is no later than this still runs, although ticks are skipped
schedule_ticks_max: Final = 20  # in one hold of the lock; the rest comes with the next look

# Batches of sinks, on their way.
staged_batch_bytes: Final = 8 * MIB  # that who stages aims at
staged_file_bytes_max: Final = 24 * MIB
staged_files_max: Final = 8_192  # of one batch of a sink
staged_bytes_total_max: Final = 64 * GIB  # of all sinks together
staged_files_total_max: Final = 32_768
staged_seconds: Final = 86_400.0  # a file that no unfinished batch needs is removed after that long
sink_once_seconds: Final = 86_400.0  # how long a sink that is used once is remembered

# Sealed segments.
segment_row_group_rows: Final = 16_384
segment_gap_offsets_max: Final = 1_024  # removed offsets that follow each other inside one extent; more divide it
segment_row_group_bytes: Final = 4 * MIB
segment_cache_bytes: Final = 64 * MIB
segment_columns_bytes: Final = 8 * MIB
segment_footers_bytes: Final = 8 * MIB
segment_own_file_bytes: Final = 8 * MIB
event_cache_bytes: Final = 32 * MIB  # row groups of events that were looked into
event_bounds_bytes: Final = 1 * MIB
segment_pin_seconds: Final = 120.0
segment_block_bytes: Final = 1 * MIB  # of segments that are kept elsewhere: the unit of the cache on the disk
segments_cache_bytes_default: Final = 1 * GIB
segments_cache_bytes_max: Final = 1 << 50
pins_max: Final = 1_000
pinned_files_max: Final = 100_000  # of one pin
seal_bytes_max: Final = 128 * MIB
compaction_ratio_default: Final = 0.5  # of superseded messages among those that are sealed
compaction_seconds_default: Final = 600.0  # between two looks at the same queue
tombstone_seconds_default: Final = 86_400.0
compaction_rows_at_once: Final = 2**21  # whose keys are in memory together, beside one of each key
compaction_ranges_max: Final = 16_384  # in one entry
compaction_offsets_max: Final = 2**16  # that one entry spans: the lock is held for it
retention_seconds_default: Final = 7 * 86_400.0
retention_bytes_default: Final = 10 * GIB
audit_retention_seconds: Final = 366 * 86_400.0
audit_retention_bytes: Final = GIB
audit_retention_seconds_min: Final = 86_400.0  # no change of options may empty the audit log
audit_retention_bytes_min: Final = 16 * MIB

# Requests of a broker, and what waits on the way to a peer that does not read.
outbox_bytes_max: Final = 1 * MIB
unread_bytes_max: Final = 256 * MIB  # of all requests that are not whole yet
progress_seconds: Final = 10.0  # in which a request must be whole, or have grown by as many bytes
progress_bytes: Final = 256 * KIB
stalled_seconds: Final = 30.0  # for a client that does not read
request_bytes_max: Final = 256 * MIB
fetch_bytes_max: Final = 8 * MIB  # of a stored file, in one answer
connections_max: Final = 10_000
grpc_streams_max: Final = 1_000  # calls at a time over one gRPC connection
grpc_names_max: Final = 10_000  # queues, task types or task ids in one gRPC request that looks at them

# What a question about a backlog may cost.
survey_messages_max: Final = 1_000_000  # that are looked at, from the oldest on
survey_keys_max: Final = 1_000  # whose names are read
wait_reasons_max: Final = 100  # of one group
wait_groups_max: Final = 100
profile_seconds_max: Final = 60.0
pipelines_max: Final = 100  # whose runs are kept
pipeline_runs_max: Final = 20  # of each
pipeline_report_bytes_max: Final = 512 * KIB
pipeline_reports_bytes_max: Final = 8 * MIB
pipeline_text_characters_max: Final = 2_000
connections_listed_max: Final = 10_000
trace_steps_max: Final = 1_000
trace_messages_max: Final = 1_000_000  # that are looked at, over all queues
ticks_max: Final = 100  # of a schedule that are listed, and tasks that it has submitted

# Metrics: names over this many share one series.
metrics_series_max: Final = 1_000

# The disk.
disk_free_bytes_floor: Final = 100 * MIB
disk_free_share: Final = 0.05
disk_free_bytes_cap: Final = 5 * GIB

assert worker_heartbeat_seconds < worker_dead_seconds
assert payload_bytes_max + key_bytes_max + headers_bytes_max + 4 * KIB < batch_bytes_max
assert batch_bytes_max < frame_bytes_max < journal_file_bytes
assert batch_bytes_max < staged_file_bytes_max < frame_bytes_max
assert staged_files_max <= staged_files_total_max
assert frame_bytes_max <= request_bytes_max
assert 2 * fetch_bytes_max <= frame_bytes_max
assert task_result_bytes_range[1] * 4 // 3 + KIB < frame_bytes_max // 2  # base64, with room for what comes with it
assert max_attempts_default <= attempts_max
assert segment_row_group_bytes * 4 < segment_cache_bytes
