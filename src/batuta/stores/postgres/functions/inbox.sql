-- Puts messages into the inbox of a chain.

-- Whether a message makes an unowned run of this state due. A run that has not begun waits for its time, unless it
-- ends.
CREATE OR REPLACE FUNCTION batuta.wakes(kind text, state text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT state = 'waiting' OR (state = 'pending' AND kind IN ('cancel', 'terminate'))
$$;

-- The limit of waiting messages, if the inbox has reached it: then this one is refused. Null: there is room for it.
CREATE OR REPLACE FUNCTION batuta.is_full_with(ns text, chain uuid, message text, message_kind text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
    last bigint;
    most bigint;
BEGIN
    IF message_kind NOT IN ('signal', 'update') AND NOT starts_with(message, 'beat:') THEN
        RETURN NULL;
    END IF;
    SELECT i.number INTO first FROM batuta.inbox i
    WHERE i.chain_id = chain AND i.consumed_at IS NULL ORDER BY i.number LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT q.at_most INTO most FROM batuta.quotas q
    WHERE q.name = 'waiting_messages' AND q.namespace IN (ns, '*') ORDER BY q.namespace = ns DESC LIMIT 1;
    IF NOT FOUND THEN
        most := 10000;  -- see journal.quotas
    END IF;
    SELECT i.number INTO last FROM batuta.inbox i
    WHERE i.chain_id = chain AND i.consumed_at IS NULL ORDER BY i.number DESC LIMIT 1;
    IF last - first + 1 < most THEN  -- there are no more messages than numbers: nothing need be counted
        RETURN NULL;
    END IF;
    PERFORM 1 FROM batuta.inbox i
    WHERE i.chain_id = chain AND i.consumed_at IS NULL AND i.kind <> 'start' ORDER BY i.number OFFSET most - 1 LIMIT 1;
    RETURN CASE WHEN FOUND THEN most END;
END
$$;

-- Put a message into the inbox of a run's chain, and make its open run due if it has no owner. outcome: sent, again
-- (its id exists already), unknown, or closed; state and owner are those of the receiver.
CREATE OR REPLACE FUNCTION batuta.send_message(
    ns text, target uuid, message text, message_kind text, message_name text, content text,
    OUT outcome text, OUT receiver uuid, OUT receiver_state text, OUT receiver_owner text
) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
    asked batuta.runs;
    last batuta.runs;
    known boolean;
    most bigint;
BEGIN
    SELECT * INTO asked FROM batuta.runs r WHERE r.run_id = target AND r.namespace = ns;
    IF NOT FOUND THEN
        outcome := 'unknown';
        RETURN;
    END IF;
    LOOP
        SELECT * INTO last FROM batuta.runs r
        WHERE r.run_id = batuta.current_run(ns, asked.id) AND r.current FOR NO KEY UPDATE;
        EXIT WHEN FOUND;  -- not found: another run took the id over while we waited for the lock, or it was deleted
        IF batuta.current_run(ns, asked.id) IS NULL THEN
            SELECT r.state INTO receiver_state FROM batuta.runs r WHERE r.run_id = target AND r.namespace || '' = ns;
            outcome := CASE WHEN FOUND THEN 'closed' ELSE 'unknown' END;
            RETURN;
        END IF;
    END LOOP;
    receiver := last.run_id;
    receiver_owner := last.owner;
    moment := batuta.batuta_now();
    PERFORM 1 FROM batuta.inbox i WHERE i.chain_id = asked.chain_id AND i.message_id = message;
    known := FOUND;
    IF known AND message_kind = 'update' AND last.chain_id = asked.chain_id AND last.closed_at IS NULL THEN
        -- One that was rejected comes again. By its number its owner knows that from having seen it before.
        DELETE FROM batuta.outputs o
        WHERE o.run_id = asked.chain_id AND o.kind = 'answer' AND o.name = message AND o.ord = -1;
        known := NOT FOUND;
        IF NOT known THEN
            DELETE FROM batuta.inbox i WHERE i.chain_id = asked.chain_id AND i.message_id = message;
        END IF;
    END IF;
    IF known THEN
        outcome := 'again';
    ELSIF last.chain_id <> asked.chain_id OR last.closed_at IS NOT NULL THEN
        outcome := 'closed';
        SELECT r.state INTO receiver_state FROM batuta.runs r WHERE r.run_id = target;
    ELSE
        most := batuta.is_full_with(ns, asked.chain_id, message, message_kind);
        IF most IS NOT NULL THEN
            outcome := 'full';
            receiver_state := most;
            RETURN;
        END IF;
        outcome := 'sent';
        receiver_state := last.state;
        INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
        VALUES (ns, asked.chain_id, message, message_kind, message_name, content, moment);
        -- A signal or a cancel always makes a new version of the row: see has_unread.
        IF message_kind IN ('signal', 'update', 'cancel') OR batuta.wakes(message_kind, last.state) THEN
            UPDATE batuta.runs r
            SET signalled = r.signalled OR message_kind IN ('signal', 'update', 'cancel'),
                debounce = CASE WHEN message_kind IN ('signal', 'update') THEN r.debounce END,
                wake_at = CASE WHEN batuta.wakes(message_kind, r.state) THEN least(r.wake_at, moment) ELSE r.wake_at END
            WHERE r.run_id = last.run_id;
        END IF;
    END IF;
END
$$;

-- Put messages into the inboxes of locked, open runs, except those that exist already, and make unowned receivers due.
-- owned: receivers with an owner; due: whether there are others.
CREATE OR REPLACE FUNCTION batuta.post(
    ns text, receivers uuid[], message_ids text[], message_kinds text[], message_names text[], contents text[],
    OUT owned uuid[], OUT due boolean
) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    told uuid[];
    signals uuid[];
    ends uuid[];
BEGIN
    WITH letter AS MATERIALIZED (
        SELECT m.*, r.chain_id
        FROM unnest(receivers, message_ids, message_kinds, message_names, contents)
             AS m(receiver, message_id, kind, name, body)
        CROSS JOIN LATERAL (SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = m.receiver LIMIT 1) r
        WHERE NOT EXISTS (
            SELECT FROM batuta.inbox i WHERE i.chain_id = r.chain_id AND i.message_id = m.message_id OFFSET 0)
    ), posted AS (
        INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
        SELECT ns, l.chain_id, l.message_id, l.kind, l.name, l.body, moment FROM letter l
        ON CONFLICT DO NOTHING
    )
    SELECT array_agg(DISTINCT l.receiver),
           array_agg(DISTINCT l.receiver) FILTER (WHERE l.kind IN ('signal', 'update', 'cancel')),
           array_agg(DISTINCT l.receiver) FILTER (WHERE l.kind IN ('cancel', 'terminate'))
    INTO told, signals, ends FROM letter l;

    UPDATE batuta.runs r
    SET signalled = r.signalled OR t.signalled,
        debounce = CASE WHEN t.kind IS NULL THEN r.debounce END,
        wake_at = CASE WHEN batuta.wakes(t.kind, r.state) THEN least(r.wake_at, moment) ELSE r.wake_at END
    FROM (
        SELECT a.run_id, (a.run_id IN (SELECT unnest(signals))) IS TRUE AS signalled,
               CASE WHEN (a.run_id IN (SELECT unnest(ends))) IS TRUE THEN 'cancel' END AS kind
        FROM unnest(told) AS a(run_id)
    ) t
    WHERE r.run_id = t.run_id AND (t.signalled OR batuta.wakes(t.kind, r.state));

    SELECT array_agg(t.run_id) FILTER (WHERE r.owner IS NOT NULL),
           coalesce(bool_or(r.wake_at <= moment), false)
    INTO owned, due
    FROM unnest(told) AS t(run_id)
    CROSS JOIN LATERAL (SELECT r.owner, r.wake_at FROM batuta.runs r WHERE r.run_id = t.run_id LIMIT 1) r;
END
$$;

-- Whether a chain has an unread signal or update.
CREATE OR REPLACE FUNCTION batuta.has_signal(chain uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM batuta.inbox i
        WHERE i.chain_id = chain AND i.consumed_at IS NULL AND i.kind IN ('signal', 'update'));
END
$$;
