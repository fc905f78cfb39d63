// Nobody is signed in: by password, or by a one-time link from `penstock dashboard`.
import { useState } from "preact/hooks";
import { ApiError, signIn, signInProblem } from "../api";
import { Command, Field } from "../parts/ui";

export default function SignIn() {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      await signIn({ user, password });
      signInProblem.value = null;
    } catch (error) {
      if (error instanceof ApiError) signInProblem.value = error;
    } finally {
      setPassword("");
      setBusy(false);
    }
  };
  const problem = signInProblem.value;
  return (
    <main class="sign-in">
      <img src="icon.svg" alt="" width="40" height="40" />
      <h1>Sign in to Penstock</h1>
      {problem ? (
        <p class="notice danger" role="alert" id="message">
          {problem.message}
          {problem.hint ? `: ${problem.hint}` : ""}
        </p>
      ) : null}
      <form onSubmit={submit}>
        <Field label="User">
          <input id="user" autocomplete="username" required value={user} onInput={(event) => setUser(event.currentTarget.value)} />
        </Field>
        <Field label="Password">
          <input id="password" type="password" autocomplete="current-password" required value={password} onInput={(event) => setPassword(event.currentTarget.value)} />
        </Field>
        <button class="primary" disabled={isBusy}>
          Sign in
        </button>
      </form>
      <p class="soft">Without a password: run this on the machine of the broker, and open the link that it prints.</p>
      <Command text="penstock dashboard" />
    </main>
  );
}
