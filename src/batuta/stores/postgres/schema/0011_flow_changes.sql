-- Workers look for flows that were written since they looked.
CREATE INDEX flows_changed ON batuta.flows (namespace, updated_at, workflow_id);
