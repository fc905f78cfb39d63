// A cron expression in plain words, where it is one of the usual kinds; "" where it is not.
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const NAMED: Record<string, string> = { "@hourly": "every hour", "@daily": "every day at 00:00", "@midnight": "every day at 00:00", "@weekly": "every Sunday at 00:00", "@monthly": "on day 1 of every month at 00:00", "@yearly": "on 1 January at 00:00", "@annually": "on 1 January at 00:00" };

const isNumber = (text: string): boolean => /^\d+$/.test(text);
const list = (words: string[]): string => (words.length < 2 ? words.join() : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

export function cronWords(cron: string): string {
  const named = NAMED[cron.trim()];
  if (named) return named;
  const [minute = "", hour = "", day = "", month = "", weekday = "", ...rest] = cron.trim().split(/\s+/);
  if (rest.length || !weekday) return "";
  const when = time(minute, hour);
  const days = date(day, month, weekday);
  if (!when || days === null) return "";
  if (days) return when.startsWith("at ") ? `${days} ${when}` : `${when} ${days}`;
  return when.startsWith("at ") ? `every day ${when}` : when;
}

function time(minute: string, hour: string): string {
  const step = minute.match(/^\*\/(\d+)$/)?.[1];
  const hours = hour.match(/^\*\/(\d+)$/)?.[1];
  if (hour === "*" && minute === "*") return "every minute";
  if (hour === "*" && step) return `every ${step} minutes`;
  if (hour === "*" && isNumber(minute)) return minute === "0" ? "every hour" : `every hour at ${minute} minutes past`;
  if (hours && isNumber(minute)) return `every ${hours} hours${minute === "0" ? "" : ` at ${minute} minutes past`}`;
  if (!isNumber(minute) || !hour.split(",").every(isNumber)) return "";
  return `at ${list(hour.split(",").map((item) => `${item.padStart(2, "0")}:${minute.padStart(2, "0")}`))}`;
}

/** The days; "" for every day, null where they cannot be said. */
function date(day: string, month: string, weekday: string): string | null {
  if (day === "*" && month === "*" && weekday === "*") return "";
  if (day === "*" && month === "*") return weekdays(weekday);
  if (weekday !== "*" || !day.split(",").every(isNumber)) return null;
  const which = list(day.split(","));
  if (month === "*") return `on day ${which} of every month`;
  return month.split(",").every(isNumber) ? `on ${which} ${list(month.split(",").map((item) => MONTHS[Number(item) - 1] ?? item))}` : null;
}

function weekdays(text: string): string | null {
  if (/^(1-5|mon-fri)$/i.test(text)) return "on weekdays";
  const days = text.split(",").map((item) => (isNumber(item) ? DAYS[Number(item)] : DAYS.find((name) => name.slice(0, 3).toLowerCase() === item.toLowerCase())));
  return days.every((name): name is string => name !== undefined) ? `every ${list(days)}` : null;
}
