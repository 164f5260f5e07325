-- What is said of a namespace, for all who connect to it: that it is encrypted, or that commands redact.
CREATE TABLE marks (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;
