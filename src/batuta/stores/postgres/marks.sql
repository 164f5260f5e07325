-- Statements about marks. `batuta` stands for the schema in use.

-- set_mark --
WITH written AS (
    INSERT INTO batuta.marks AS m (namespace, name, value) VALUES ($1, $2, $3)
    ON CONFLICT (namespace, name) DO UPDATE SET value = excluded.value WHERE m.value <> excluded.value
    RETURNING m.name
)
SELECT batuta.record_acts($1, $4, $5, $6, $7, $8, $9, ARRAY[w.name], '{}', '{}', '{}', batuta.batuta_now())
FROM written w;

-- clear_mark --
WITH cleared AS (
    DELETE FROM batuta.marks m WHERE m.namespace = $1 AND m.name = $2 RETURNING m.name
)
SELECT batuta.record_acts($1, $3, $4, $5, $6, $7, $8, ARRAY[c.name], '{}', '{}', '{}', batuta.batuta_now())
FROM cleared c;

-- marks --
SELECT m.name, m.value FROM batuta.marks m WHERE m.namespace = $1 ORDER BY m.name;
