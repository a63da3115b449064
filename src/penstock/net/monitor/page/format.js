// Numbers, sizes and times as people read them.

export const number = (value) => Math.round(value ?? 0).toLocaleString("en-US");

export function rate(value) {
  return value > 0 && value < 10 ? value.toFixed(1) : number(value);
}

export function size(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let left = bytes ?? 0, at = 0;
  while (left >= 1024 && at < units.length - 1) { left /= 1024; at += 1; }
  return `${left >= 100 || at === 0 ? Math.round(left) : left.toFixed(1)} ${units[at]}`;
}

export function short(value) {
  const units = ["", "k", "M", "G"];
  let left = value, at = 0;
  while (left >= 1000 && at < units.length - 1) { left /= 1000; at += 1; }
  return `${left >= 100 || Number.isInteger(left) ? Math.round(left) : left.toFixed(1)}${units[at]}`;
}

export function span(seconds) {
  const steps = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [length, unit] of steps) {
    if (seconds >= length) {
      const found = seconds / length;
      return `${found < 10 ? found.toFixed(1) : Math.round(found)} ${unit}`;
    }
  }
  return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
}

export function milliseconds(ns) {
  if (!ns) return "";
  return ns < 1e6 ? `${Math.round(ns / 1e3)} µs` : `${(ns / 1e6).toFixed(1)} ms`;
}

export function clock(seconds, withSeconds = false) {
  const options = {hour: "2-digit", minute: "2-digit", hour12: false};
  if (withSeconds) options.second = "2-digit";
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", options);
}

export function when(text) {
  if (!text) return "";
  const found = new Date(text);
  return Number.isNaN(found.getTime()) ? text
    : found.toLocaleString("en-GB", {dateStyle: "medium", timeStyle: "medium"});
}
