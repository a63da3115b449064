// Questions: fields, and for what cannot be undone the name to type.

import {make, sentence} from "./dom.js";

// Ask; `act` gets the values, and the dialog stays open with the error if it fails.
export function ask({title, text, fields = [], name, action, act, isDangerous = false}) {
  const dialog = document.getElementById("dialog");
  const inputs = fields.map((field) => input(field));
  const typed = name ? make("input", {autocomplete: "off", spellcheck: "false", "aria-label": `Type ${name}`}) : null;
  const error = make("p", {class: "bad", role: "alert"});
  const go = make("button", {class: isDangerous ? "danger" : "main", type: "submit", disabled: Boolean(name)}, action);
  typed?.addEventListener("input", () => { go.disabled = typed.value !== name; });
  return new Promise((resolve) => {
    const submit = async (event) => {
      event.preventDefault();
      go.disabled = true;
      error.textContent = "";
      try {
        await act(Object.fromEntries(fields.map((field, at) => [field.name, value(inputs[at])])), typed?.value);
        dialog.close("done");
      } catch (failure) {
        error.textContent = failure.message;
        go.disabled = false;
      }
    };
    const form = make("form", {submit},
      make("h2", {}, title), text ? make("p", {class: "quiet"}, sentence(text)) : null,
      fields.map((field, at) => make("label", {}, make("span", {}, field.title), inputs[at])),
      typed ? make("label", {}, make("span", {}, sentence(`Type \`${name}\` to confirm`)), typed) : null,
      error,
      make("div", {class: "tools"}, make("button", {type: "button", click: () => dialog.close("")}, "Cancel"), go));
    dialog.replaceChildren(form);
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "done"), {once: true});
    dialog.returnValue = "";
    dialog.showModal();
    (inputs[0] ?? typed)?.focus();
  });
}

function input(field) {
  if (field.type === "textarea") return make("textarea", {spellcheck: "false"}, field.value ?? "");
  return make("input", {type: field.type ?? "text", value: field.value, autocomplete: field.autocomplete ?? "off",
    placeholder: field.placeholder, spellcheck: "false"});
}

const value = (input) => input.type === "checkbox" ? input.checked : input.value;
