-- How long runs are kept, and how they are deleted: whole chains, which are closed. Nobody else writes to such a run,
-- but for an operator who has it go on: who deletes locks all runs of a chain first, and then looks again.

CREATE TABLE batuta.retention (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    state     text COLLATE "C" NOT NULL,
    keep      bigint,
    PRIMARY KEY (namespace, name, state)
);

COMMENT ON TABLE batuta.retention IS 'How long runs are kept once they are closed. An empty name or state stands for any; the most specific rule holds';
COMMENT ON COLUMN batuta.retention.keep IS 'Microseconds from the close; null: for ever';

-- How long runs of a name are kept after they closed in a state; null: for ever.
CREATE FUNCTION batuta.kept_for(ns text, workflow text, ended text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT r.keep FROM batuta.retention r
        WHERE r.namespace = ns AND r.name IN ('', workflow) AND r.state IN ('', ended)
        ORDER BY r.name <> '' DESC, r.state <> '' DESC LIMIT 1);
END
$$;

-- The runs of chains: those that others follow, and the last, which may be the current one of its id.
CREATE FUNCTION batuta.chain_runs(ns text, chains uuid[]) RETURNS TABLE (chain uuid, member uuid)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT f.run_id, m.run_id
    FROM unnest(chains) AS c(chain_id)
    CROSS JOIN LATERAL (
        SELECT r.run_id, r.id FROM batuta.runs r WHERE r.run_id = c.chain_id AND r.namespace || '' = ns LIMIT 1
    ) f
    CROSS JOIN LATERAL (
        (SELECT r.run_id FROM batuta.runs r
         WHERE r.run_id = batuta.current_run(ns, f.id) AND r.chain_id = f.run_id LIMIT 1)
        UNION ALL
        (SELECT r.run_id FROM batuta.runs r
         WHERE r.id = f.id AND r.namespace = ns AND NOT r.current AND r.chain_id = f.run_id OFFSET 0)
    ) m;
END
$$;

-- Whether the last run of a chain, which is the current one of its id then, is open.
CREATE FUNCTION batuta.chain_goes_on(ns text, chain uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM batuta.runs f
        CROSS JOIN LATERAL (
            SELECT FROM batuta.runs r
            WHERE r.run_id = batuta.current_run(ns, f.id) AND r.chain_id = chain AND r.closed_at IS NULL
            LIMIT 1
        ) r
        WHERE f.run_id = chain OFFSET 0);
END
$$;

-- All that belongs to these runs is gone. What belongs to a chain goes with its first run.
CREATE FUNCTION batuta.erase_runs(ns text, gone uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM batuta.journal j WHERE j.run_id = ANY (gone);
    DELETE FROM batuta.inbox i WHERE i.chain_id = ANY (gone);
    DELETE FROM batuta.outputs o WHERE o.run_id = ANY (gone);
    DELETE FROM batuta.attempts a WHERE a.run_id = ANY (gone);
    DELETE FROM batuta.runs r WHERE r.run_id = ANY (gone);
    PERFORM batuta.forget_letters(ns, gone);
END
$$;

-- Delete the chains of these runs with those of their children, at any depth, where none of all these runs is open, nor
-- the parent of one: that may start it again.
CREATE FUNCTION batuta.delete_runs(
    ns text, asked uuid[], actor text, verb text, reason text, detail text, before text, after text
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    family uuid[];
    gone uuid[];
    log record;
BEGIN
    family := batuta.families(ns, asked);
    PERFORM 1 FROM unnest(family) AS f(member)
    CROSS JOIN LATERAL (SELECT FROM batuta.runs r WHERE r.run_id = f.member FOR UPDATE) r;
    -- Now nobody else can have one of them go on: what is closed stays so. What came meanwhile is open.
    gone := batuta.families(ns, asked, only_closed => true);
    SELECT array_agg(r.id) AS ids, array_agg(r.run_id::text) AS run_ids, array_agg(batuta.state_json(r.state)) AS befores
    INTO log
    FROM unnest(gone) AS g(member)
    CROSS JOIN LATERAL (SELECT r.id, r.run_id, r.state FROM batuta.runs r WHERE r.run_id = g.member LIMIT 1) r;
    PERFORM batuta.erase_runs(ns, gone);
    PERFORM batuta.record_acts(
        ns, actor, verb, reason, detail, before, after, log.ids, log.run_ids, log.befores, '{}', batuta.batuta_now());
    RETURN gone;
END
$$;

-- The chains of these runs, each with those of its children; in order, for locks. With only_closed: without those of
-- which a run, or the parent of one, is open.
CREATE FUNCTION batuta.families(ns text, asked uuid[], only_closed boolean DEFAULT false) RETURNS uuid[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE tree(root, chain_id) AS (
            SELECT DISTINCT r.chain_id, r.chain_id
            FROM unnest(asked) AS a(run_id)
            CROSS JOIN LATERAL (
                SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = a.run_id AND r.namespace || '' = ns LIMIT 1
            ) r
            UNION
            SELECT t.root, k.chain_id
            FROM tree t
            CROSS JOIN LATERAL batuta.chain_runs(ns, ARRAY[t.chain_id]) m
            CROSS JOIN LATERAL (
                SELECT k.chain_id FROM batuta.runs k WHERE k.parent_run_id = m.member AND k.namespace || '' = ns OFFSET 0
            ) k
        ), member AS MATERIALIZED (
            SELECT t.root, m.member, r.is_held
            FROM tree t
            CROSS JOIN LATERAL batuta.chain_runs(ns, ARRAY[t.chain_id]) m
            CROSS JOIN LATERAL (
                SELECT r.closed_at IS NULL OR r.parent_run_id IS NOT NULL AND EXISTS (
                    SELECT FROM batuta.runs p WHERE p.run_id = r.parent_run_id AND p.closed_at IS NULL OFFSET 0) AS is_held
                FROM batuta.runs r WHERE r.run_id = m.member LIMIT 1
            ) r
        )
        SELECT DISTINCT m.member FROM member m
        WHERE NOT only_closed OR (m.root IN (SELECT o.root FROM member o WHERE o.is_held)) IS NOT TRUE
        ORDER BY m.member);
END
$$;

-- Whether a closed run must stay: an open parent may start it again, a parent is kept as long as any child, and a dead
-- letter until somebody has looked at it.
CREATE FUNCTION batuta.is_needed(run uuid, state text, parent uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM batuta.runs k WHERE k.parent_run_id = run OFFSET 0)
        OR state = 'failed' AND EXISTS (
            SELECT FROM batuta.dead_letters l WHERE l.run_id = run AND l.state = 'open' OFFSET 0)
        OR parent IS NOT NULL AND EXISTS (
            SELECT FROM batuta.runs p WHERE p.run_id = parent AND p.closed_at IS NULL OFFSET 0)
$$;

-- Of these chains, the runs of those that are closed, whose retention is over, and that nobody needs, in order, up to
-- `most_entries`: with the place of their chain, and how many it has. `rest`: the place of the first that is too many.
CREATE FUNCTION batuta.chains_over(
    ns text, chains uuid[], moment bigint, most_entries bigint,
    OUT members uuid[], OUT currents boolean[], OUT places bigint[], OUT sizes integer[], OUT rest bigint
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF cardinality(chains) = 0 THEN
        RETURN;
    END IF;
    WITH over AS MATERIALIZED (
        SELECT c.n, m.members, m.currents, sum(m.entries) OVER (ORDER BY c.n) - m.entries >= most_entries AS later
        FROM unnest(chains) WITH ORDINALITY AS c(chain_id, n)
        CROSS JOIN LATERAL (
            SELECT array_agg(r.run_id) AS members, array_agg(r.current) AS currents, sum(r.head + 1) AS entries,
                   bool_and(r.closed_at IS NOT NULL AND NOT r.needed) AS is_free,
                   (array_agg(r.name ORDER BY r.closed_at DESC, r.run_id DESC))[1] AS name,
                   (array_agg(r.state ORDER BY r.closed_at DESC, r.run_id DESC))[1] AS state,
                   max(r.closed_at) AS closed_at
            FROM batuta.chain_runs(ns, ARRAY[c.chain_id]) k
            CROSS JOIN LATERAL (
                SELECT r.*, batuta.is_needed(r.run_id, r.state, r.parent_run_id) AS needed
                FROM batuta.runs r WHERE r.run_id = k.member LIMIT 1
            ) r
        ) m
        -- Of a long chain that goes on, it is enough to look at the current run.
        WHERE NOT batuta.chain_goes_on(ns, c.chain_id)
          AND m.is_free AND m.closed_at + batuta.kept_for(ns, m.name, m.state) <= moment
    )
    SELECT array_agg(m.run_id), array_agg(m.current), array_agg(o.n), array_agg(cardinality(o.members)),
           (SELECT min(l.n) FROM over l WHERE l.later)
    INTO members, currents, places, sizes, rest
    FROM over o
    CROSS JOIN LATERAL unnest(o.members, o.currents) AS m(run_id, current)
    WHERE NOT o.later;
END
$$;

-- The next runs after one, and what is to be done about them: `plain` are chains of a single run that are over, `chains`
-- those that must be looked at as a whole, with their first run among these. No more runs than have about as many
-- entries as may be deleted. A dry run, which leaves all, finds a chain only by the run that it began with: once.
CREATE FUNCTION batuta.look_at_oldest(
    ns text, lim integer, after uuid, dry boolean, most_entries bigint, moment bigint, oldest bigint,
    OUT run_ids uuid[], OUT plain uuid[], OUT chains uuid[], OUT firsts uuid[], OUT goes_on boolean
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    WITH page AS MATERIALIZED (
        SELECT r.*, sum(r.entries) OVER (ORDER BY r.run_id ROWS UNBOUNDED PRECEDING) - r.entries AS before
        FROM (
            SELECT r.run_id, r.chain_id, r.closed_at, r.created_at, r.name, r.state, r.parent_run_id,
                   (r.closed_at <= oldest) IS TRUE AS ended, r.current AND r.chain_id = r.run_id AS single,
                   CASE WHEN r.closed_at <= oldest THEN r.head + 1 ELSE 0 END AS entries
            FROM batuta.runs r
            WHERE r.namespace = ns AND r.run_id > coalesce(after, '00000000-0000-0000-0000-000000000000')
            ORDER BY r.run_id LIMIT lim
        ) r
    ), looked AS MATERIALIZED (
        SELECT * FROM page p WHERE p.before < most_entries
    ), kind AS MATERIALIZED (
        SELECT k.name, k.state, moment - batuta.kept_for(ns, k.name, k.state) AS until
        FROM (SELECT DISTINCT l.name, l.state FROM looked l WHERE l.ended AND l.single) k
    ), family AS MATERIALIZED (
        SELECT l.chain_id, min(l.run_id::text)::uuid AS first FROM looked l
        WHERE l.ended AND NOT l.single AND (NOT dry OR l.run_id = l.chain_id)
        GROUP BY l.chain_id
    )
    SELECT ARRAY(SELECT l.run_id FROM looked l ORDER BY l.run_id),
           ARRAY(
               SELECT l.run_id FROM looked l JOIN kind k ON k.name = l.name AND k.state = l.state
               WHERE l.ended AND l.single AND l.closed_at <= k.until
                 AND NOT batuta.is_needed(l.run_id, l.state, l.parent_run_id)),
           ARRAY(SELECT f.chain_id FROM family f ORDER BY f.first),
           ARRAY(SELECT f.first FROM family f ORDER BY f.first),
           -- Where all are younger than the shortest rule, none of those behind them can be over.
           (SELECT count(*) = lim OR count(*) > (SELECT count(*) FROM looked) FROM page p)
           AND (SELECT min(l.created_at) <= oldest FROM looked l)
    INTO run_ids, plain, chains, firsts, goes_on;
END
$$;

-- Look at the next runs after one, and delete the chains whose retention is over: as many as have `most_entries` journal
-- entries together, and one at least. What is locked is left for the next round.
CREATE FUNCTION batuta.prune(
    ns text, lim integer, after uuid, dry boolean, most_entries bigint, OUT deleted bigint, OUT last uuid,
    OUT busy float8
) LANGUAGE plpgsql AS $$
DECLARE
    begun timestamptz := clock_timestamp();
    moment bigint := batuta.batuta_now();
    oldest bigint := moment - (SELECT min(r.keep) FROM batuta.retention r WHERE r.namespace = ns);
    page record;
    found record;
    gone uuid[];
BEGIN
    deleted := 0;
    busy := 0;
    IF oldest IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO page FROM batuta.look_at_oldest(ns, lim, after, dry, most_entries, moment, oldest);
    IF page.goes_on THEN
        last := page.run_ids[cardinality(page.run_ids)];
    END IF;
    SELECT * INTO found FROM batuta.chains_over(ns, page.chains, moment, most_entries);
    IF found.rest IS NOT NULL THEN
        last := (SELECT r.run_id FROM unnest(page.run_ids) AS r(run_id) WHERE r.run_id < page.firsts[found.rest]
                 ORDER BY r.run_id DESC LIMIT 1);
    END IF;
    IF dry THEN
        deleted := cardinality(page.plain) + coalesce(cardinality(found.members), 0);
    ELSE
        -- A run that somebody has just had go on is its id's current one no more.
        gone := ARRAY(
            SELECT r.run_id FROM unnest(page.plain) AS p(run_id)
            CROSS JOIN LATERAL (
                SELECT r.run_id FROM batuta.runs r WHERE r.run_id = p.run_id AND r.current FOR UPDATE SKIP LOCKED
            ) r) || ARRAY(
            SELECT unnest(array_agg(r.run_id))
            FROM unnest(found.members, found.currents, found.places, found.sizes) AS f(run_id, current, place, size)
            CROSS JOIN LATERAL (
                SELECT r.run_id FROM batuta.runs r
                WHERE r.run_id = f.run_id AND r.current = f.current
                FOR UPDATE SKIP LOCKED
            ) r
            GROUP BY f.place HAVING count(*) = max(f.size));
        PERFORM batuta.erase_runs(ns, gone);
        deleted := cardinality(gone);
    END IF;
    busy := extract(epoch FROM clock_timestamp() - begun);
END
$$;

COMMENT ON FUNCTION batuta.prune IS 'One step of pruning: short, and it waits for no run';
