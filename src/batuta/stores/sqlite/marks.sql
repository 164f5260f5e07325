-- Statements about marks.

-- set_mark --
INSERT INTO marks (namespace, name, value) VALUES (?, ?, ?)
ON CONFLICT (namespace, name) DO UPDATE SET value = excluded.value WHERE value <> excluded.value;

-- clear_mark --
DELETE FROM marks WHERE namespace = ? AND name = ?;

-- marks --
SELECT name, value FROM marks WHERE namespace = ? ORDER BY name;
