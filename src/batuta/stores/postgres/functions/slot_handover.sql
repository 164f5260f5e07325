-- Ends jobs and claims the next ones for their slots, in one transaction.

-- Jobs that have succeeded and of which nothing was written before: two entries each, and the end. Texts: see
-- fast/column_encoding.py. `winners` is how many fences held; `won` says which, when they are not as many as `asked`:
-- naming them is expensive for the driver. due: a run that awaited them may be claimed now.
CREATE OR REPLACE FUNCTION batuta.end_jobs(
    ns text, worker text, run_ids text, epochs text, began_at text, first_crcs text, first_bodies text, ended_at text,
    last_crcs text, last_bodies text, asked bigint, OUT winners bigint, OUT won uuid[], OUT due boolean
) LANGUAGE plpgsql AS $$
BEGIN
    WITH done AS MATERIALIZED (
        SELECT *
        FROM unnest(string_to_array(end_jobs.run_ids, ',')::uuid[], string_to_array(epochs, ',')::integer[],
                    string_to_array(end_jobs.began_at, ',')::bigint[], string_to_array(first_crcs, ',')::bigint[],
                    string_to_array(first_bodies, E'\x1f'), string_to_array(end_jobs.ended_at, ',')::bigint[],
                    string_to_array(last_crcs, ',')::bigint[], string_to_array(last_bodies, E'\x1f'))
             AS d(run_id, epoch, began_at, first_crc, first_body, ended_at, last_crc, last_body)
    ), moved AS (
        UPDATE batuta.runs r
        SET head = 1, state = 'completed', reason = '', owner = NULL, wake_at = NULL, start = NULL,
            closed_at = (SELECT batuta.batuta_now())
        FROM done d
        WHERE r.run_id = d.run_id AND r.epoch = d.epoch AND r.head = -1 AND r.closed_at IS NULL AND r.namespace || '' = ns
          AND r.owner IS NOT DISTINCT FROM worker
          AND (NOT r.signalled OR NOT batuta.has_unread(r.chain_id, 'completed'))
        RETURNING r.run_id, r.chain_id, r.parent_run_id AS parent, d.epoch, d.began_at, d.first_crc, d.first_body,
                  d.ended_at, d.last_crc, d.last_body
    ), written AS (
        INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
        SELECT ns, m.run_id, e.ord, m.epoch, e.kind, e.at, e.crc, e.body
        FROM moved m
        CROSS JOIN LATERAL (VALUES
            (0, 'started', m.began_at, m.first_crc, m.first_body),
            (1, 'activity_done', m.ended_at, m.last_crc, m.last_body)
        ) AS e(ord, kind, at, crc, body)
    ), begun AS (
        DELETE FROM batuta.inbox i USING (SELECT m.chain_id, 'start:' || m.run_id AS message_id FROM moved m OFFSET 0) m
        WHERE i.chain_id = m.chain_id AND i.message_id = m.message_id
    )
    SELECT count(*), CASE WHEN count(*) <> asked THEN array_agg(m.run_id) END,
           batuta.await_fewer(ns, array_agg(m.parent) FILTER (WHERE m.parent IS NOT NULL))
    INTO winners, won, due
    FROM moved m;
END
$$;

-- End jobs, and claim: see both functions. The first row is news of the ends, as a JSON object. The ends come first:
-- the rows locked by then are the worker's own runs, for which no holder of a queue's row waits.
CREATE OR REPLACE FUNCTION batuta.hand_over(
    ns text, run_ids text, epochs text, began_at text, first_crcs text, first_bodies text, ended_at text, last_crcs text,
    last_bodies text, asked bigint, worker text, queue_names text[], codes text[], fingerprints text[], wanted integer,
    turns jsonb
) RETURNS SETOF batuta.claimed LANGUAGE plpgsql AS $$
DECLARE
    synced CONSTANT text := current_setting('synchronous_commit');
    ended record;
    other batuta.claimed;
BEGIN
    ended := batuta.end_jobs(
        ns, worker, run_ids, epochs, began_at, first_crcs, first_bodies, hand_over.ended_at, last_crcs, last_bodies,
        asked);
    other.news := to_json(ended);
    RETURN NEXT other;
    RETURN QUERY SELECT * FROM batuta.claim(
        ns, worker, queue_names, codes, fingerprints, wanted, NULL, NULL, turns, NULL);
    PERFORM set_config('synchronous_commit', synced, true);  -- a claim that found nothing need not be on disk; the ends must
END
$$;
