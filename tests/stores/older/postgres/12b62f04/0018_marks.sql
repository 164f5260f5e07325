-- What is said of a namespace, for all who connect to it.

CREATE TABLE batuta.marks (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    value     text NOT NULL,
    PRIMARY KEY (namespace, name)
);

COMMENT ON TABLE batuta.marks IS 'What is said of a namespace: that it is encrypted, or that commands redact';
