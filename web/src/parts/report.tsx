// A report of a pipeline: HTML of somebody else. It is shown in a frame without scripts, without an origin and without a
// network; the broker sends it with a policy that says the same.
import { at, getText, root, tabSecret } from "../api";
import { trustedPage } from "../trusted";
import { useLoad, View } from "./load";

interface ReportProps {
  parts: readonly string[];
  title: string;
}

export function Report({ parts, title }: ReportProps) {
  // Over plain http every request names its tab, which a frame cannot do: the page fetches the text itself. The policy of
  // the page then holds in the frame too, so the report has no styles of its own.
  if (tabSecret()) return <FetchedReport parts={parts} title={title} />;
  return <iframe class="report" sandbox="" src={new URL(at(parts), root).href} title={title} />;
}

function FetchedReport({ parts, title }: ReportProps) {
  const loaded = useLoad(parts.join(), (abort) => getText(parts, abort));
  return <View of={loaded}>{(text) => <iframe class="report" sandbox="" srcDoc={trustedPage(quiet(text))} title={title} />}</View>;
}

/** Without what the sandbox and the policy would refuse, each with a line in the console. */
function quiet(html: string): string {
  const plain = html.replace(/<style[\s\S]*?<\/style\s*>/gi, "").replace(/\s(?:style|on\w+)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+)/gi, "");
  const page = new DOMParser().parseFromString(trustedPage(plain), "text/html");
  for (const element of page.querySelectorAll("script, link, img")) element.remove();
  // Attributes are no styles to the policy: without them the columns of a table run into each other.
  for (const table of page.querySelectorAll("table")) table.setAttribute("cellpadding", "3");
  for (const cell of page.querySelectorAll("th, td")) cell.setAttribute("align", /^[\d.,%\s-]+$/.test(cell.textContent ?? "") ? "right" : "left");
  return page.documentElement.outerHTML;
}
