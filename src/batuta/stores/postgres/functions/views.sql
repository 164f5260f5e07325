-- Views for people and reports. The columns are those of the views in SQLite.

CREATE OR REPLACE VIEW batuta.batuta_runs AS
SELECT namespace, id, run_id, kind, name, queue, priority, state, reason, owner, epoch, head + 1 AS entries, deaths,
       to_timestamp(created_at / 1e6) AS created_at,
       to_timestamp(closed_at / 1e6) AS closed_at,
       to_timestamp(wake_at / 1e6) AS wake_at,
       to_timestamp(deadline / 1e6) AS deadline,
       current, chain_id, parent_run_id, version, tags, memo, flow_key,
       to_timestamp(expires_at / 1e6) AS expires_at, awaits,
       forked_from, CASE WHEN forked_from IS NOT NULL THEN forked_at END AS forked_at
FROM batuta.runs;

COMMENT ON VIEW batuta.batuta_runs IS 'Runs, with times that people can read';

-- JSON that PostgreSQL can parse: it refuses a document with \u0000 anywhere, and one of them would break the whole
-- view.
CREATE OR REPLACE FUNCTION batuta.readable(body text) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(body, '\u0000', '\ufffd')::json
$$;

CREATE OR REPLACE VIEW batuta.batuta_activities AS
WITH asked AS (
    SELECT j.run_id, (c ->> 'seq')::integer AS seq, c ->> 'name' AS name, c -> 'value' AS input, j.at
    FROM batuta.journal j CROSS JOIN LATERAL json_array_elements(batuta.readable(j.body) -> 'commands') c
    WHERE c ->> 'kind' = 'activity'
), done AS (
    SELECT j.run_id, (b.body ->> 'seq')::integer AS seq, j.kind, j.at,
           b.body -> 'value' AS output, b.body -> 'error' AS error,
           (b.body ->> 'attempts')::integer AS attempts, (b.body ->> 'started_at')::bigint AS started_at
    FROM batuta.journal j CROSS JOIN LATERAL (SELECT batuta.readable(j.body) AS body) b
    WHERE j.kind IN ('activity_done', 'activity_failed')
)
SELECT r.namespace, r.id, a.run_id, a.seq, a.name,
       CASE d.kind WHEN 'activity_done' THEN 'completed' WHEN 'activity_failed' THEN 'failed' ELSE 'pending' END AS state,
       a.input, d.output,
       CASE WHEN d.kind IS NULL THEN batuta.readable(t.error) ELSE d.error END AS error,
       coalesce(d.attempts, t.number, 0) AS attempts,
       to_timestamp(a.at / 1e6) AS scheduled_at,
       to_timestamp(coalesce(d.started_at, t.started_at) / 1e6) AS started_at,
       to_timestamp(d.at / 1e6) AS ended_at
FROM asked a
JOIN batuta.runs r ON r.run_id = a.run_id
LEFT JOIN done d ON d.run_id = a.run_id AND d.seq = a.seq
LEFT JOIN LATERAL (
    SELECT t.number, t.started_at, t.error FROM batuta.attempts t
    WHERE t.run_id = a.run_id AND t.seq = a.seq ORDER BY t.number DESC LIMIT 1
) t ON true;

COMMENT ON VIEW batuta.batuta_activities IS 'One row per activity that a run has called: input, outcome, attempts and times';

CREATE OR REPLACE VIEW batuta.batuta_audit AS
SELECT namespace, number, to_timestamp(at / 1e6) AS at, actor, verb, target, nullif(run_id, '') AS run_id, reason, detail,
       before, after, hash, salt
FROM batuta.audit;

COMMENT ON VIEW batuta.batuta_audit IS 'What operators did, with times that people can read';

CREATE OR REPLACE VIEW batuta.batuta_dead_letters AS
SELECT namespace, id, run_id, kind, name, queue, flow_key, state, to_timestamp(at / 1e6) AS at, reason, error, message,
       fingerprint, activity, seq, attempts, trace, to_timestamp(resolved_at / 1e6) AS resolved_at, note, successor
FROM batuta.dead_letters;

COMMENT ON VIEW batuta.batuta_dead_letters IS 'Dead letters, with times that people can read';
