// Who is signed in, and requests in that name.

import {say} from "./dom.js";
import {ask} from "./dialog.js";

export const session = {
  user: "", account: "", token: "", isOperator: false, isOffered: false, changed: () => {},

  take(found) {
    const before = `${this.user} ${this.isOffered}`;
    Object.assign(this, {user: found.user ?? "", account: found.account ?? "", token: found.token ?? "",
      isOperator: found.is_operator ?? false, isOffered: found.is_offered});
    if (before !== `${this.user} ${this.isOffered}`) this.changed();
  },

  async refresh() {
    try {
      const answer = await fetch("console/session", {cache: "no-store"});
      if (answer.ok) this.take(await answer.json());
    } catch { /* The event stream tells that the server is gone. */ }
  },

  async toggle() {
    if (this.user) {
      this.take(await this.post("sign-out", {}));
      say("Signed out.");
      return;
    }
    await ask({
      title: "Sign in",
      text: "As a user of this server. You may do here what that user may do.",
      fields: [
        {name: "user", title: "User (empty for a token)", autocomplete: "username"},
        {name: "password", title: "Password or token", type: "password", autocomplete: "current-password"},
      ],
      action: "Sign in",
      act: async (values) => this.take(await this.post("sign-in", values)),
    });
  },

  // Post something in the name of who is signed in; raise what the server says against it.
  async post(what, fields) {
    const answer = await fetch(`console/${what}`, {
      method: "POST", cache: "no-store", body: JSON.stringify(fields),
      headers: {"Content-Type": "application/json", "X-Penstock-Token": this.token || "none"},
    });
    const found = await answer.json().catch(() => ({error: `${answer.status} ${answer.statusText}`}));
    if (answer.status === 401 && this.user) this.take({is_offered: true});
    if (!answer.ok) throw new Error(found.error ?? answer.statusText);
    return found;
  },
};
