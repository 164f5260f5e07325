import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Trouble } from "../components/Empty";
import { Brand } from "../components/Icon";
import { signIn } from "../state/session";

/** Sign in with an API key. */
export default function SignIn(): JSX.Element {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (busy || !key.trim()) return;
    setBusy(true);
    setError(null);
    signIn(key.trim()).catch((found: unknown) => {
      setBusy(false);
      setError(found instanceof Error ? found : new Error(String(found)));
    });
  };
  return (
    <main class="sign-in">
      <form class="card" onSubmit={submit}>
        <div class="brand">
          <Brand />
          Batuta
        </div>
        <h1>Sign in</h1>
        <label class="field">
          <span>API key</span>
          <input class="input mono" type="password" name="key" value={key} autocomplete="current-password" placeholder="batuta_live_…" onInput={(event) => setKey(event.currentTarget.value)} />
        </label>
        {error && <Trouble error={error} />}
        <button type="submit" class="btn go" disabled={busy || !key.trim()}>
          {busy ? "Signing in…" : "Sign in"}
        </button>
        <p class="faint small">
          An administrator makes keys with <code>batuta api-keys create NAME</code>
        </p>
      </form>
    </main>
  );
}
