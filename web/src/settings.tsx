// The settings of coming runs. The API key is kept in memory alone.

import type { RefObject } from "preact";
import type { Server } from "./api";
import type { Settings } from "./model";

export const DEFAULTS: Settings = {
  temperature: "0.7",
  top_p: "0.95",
  seed: "7",
  max_tokens: "200",
  k: "",
  method: "",
  system: "",
};

export function SettingsCard({ settings, apiKey, server, keyField, onChange, onKey, chat }: {
  settings: Settings;
  apiKey: string;
  server: Server | null;
  keyField: RefObject<HTMLInputElement | null>;
  onChange: (settings: Settings) => void;
  onKey: (key: string) => void;
  chat: boolean;
}) {
  const field = (name: keyof Settings, label: string, hint: string, attributes: Record<string, unknown>) => (
    <label class="field">
      <span>{label}</span>
      <input
        {...attributes}
        name={name}
        value={settings[name]}
        placeholder={hint}
        autocomplete="off"
        onInput={(event) => onChange({ ...settings, [name]: event.currentTarget.value })}
      />
    </label>
  );
  const number = { type: "number", inputMode: "decimal" };
  return (
    <form class="settings" onSubmit={(event) => event.preventDefault()}>
      <div class="fields">
        <label class="field">
          <span>Drafter</span>
          <select
            name="method"
            value={settings.method}
            onChange={(event) => onChange({ ...settings, method: event.currentTarget.value })}
          >
            <option value="">default</option>
            {server?.methods.map((method) => (
              <option key={method} value={method}>
                {method}
              </option>
            ))}
            <option value="off">off</option>
          </select>
        </label>
        {field("k", "Drafts per pass, K", !server?.k ? "default" : `up to ${server.k}`, {
          ...number,
          min: 0,
          max: server?.k || 64,
          step: 1,
          disabled: settings.method === "off",
        })}
        {field("temperature", "Temperature", "model’s own", { ...number, min: 0, max: 2, step: 0.1 })}
        {field("top_p", "Top p", "1", { ...number, min: 0, max: 1, step: 0.05 })}
        {field("seed", "Seed", "random", { ...number, inputMode: "numeric", step: 1 })}
        {field("max_tokens", "Max tokens", "server’s choice", { ...number, inputMode: "numeric", min: 1, step: 1 })}
      </div>
      {chat && (
        <label class="field">
          <span>System message</span>
          <textarea
            name="system"
            rows={1}
            value={settings.system}
            onInput={(event) => onChange({ ...settings, system: event.currentTarget.value })}
          />
        </label>
      )}
      <label class="field">
        <span>API key</span>
        <input
          ref={keyField}
          type="password"
          name="key"
          value={apiKey}
          placeholder="kept in memory only"
          autocomplete="off"
          onInput={(event) => onKey(event.currentTarget.value)}
        />
      </label>
    </form>
  );
}
