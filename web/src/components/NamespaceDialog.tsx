import type { JSX } from "preact";
import { namespaces } from "../api/endpoints";
import { useResource } from "../state/live";
import { chooseNamespace, session } from "../state/session";
import { useStore } from "../state/store";
import { Dialog } from "./Dialog";
import { Trouble } from "./Empty";

/** Which namespace the pages show, for a credential that may see all of them. */
export function NamespaceDialog({ onClose }: { onClose: () => void }): JSX.Element {
  const current = useStore(session)?.namespace;
  const { data, error, reload } = useResource("namespaces", namespaces);
  return (
    <Dialog title="Choose a namespace" onClose={onClose}>
      {error && <Trouble error={error} retry={reload} />}
      {data?.namespaces.map(({ name }) => (
        <button key={name} type="button" class="btn" aria-pressed={name === current} onClick={() => (name === current ? onClose() : chooseNamespace(name))}>
          <span class="mono">{name}</span>
          {name === current && <span class="faint small"> is shown now</span>}
        </button>
      ))}
    </Dialog>
  );
}
