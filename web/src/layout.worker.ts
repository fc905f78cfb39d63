// Lays a graph out from left to right, away from the thread that draws.
import dagre from "@dagrejs/dagre";

export interface LayoutRequest {
  nodes: { id: string; width: number; height: number }[];
  edges: [string, string][];
}

export interface LayoutReply {
  width: number;
  height: number;
  nodes: Record<string, { x: number; y: number }>;
  edges: { from: string; to: string; points: { x: number; y: number }[] }[];
}

onmessage = (event: MessageEvent<LayoutRequest>): void => {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 48, marginx: 16, marginy: 16 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of event.data.nodes) graph.setNode(node.id, { ...node });
  for (const [from, to] of event.data.edges) graph.setEdge(from, to);
  dagre.layout(graph);
  const { width = 0, height = 0 } = graph.graph();
  const nodes = Object.fromEntries(graph.nodes().map((id) => [id, { x: graph.node(id).x, y: graph.node(id).y }]));
  const edges = graph.edges().map((edge) => ({ from: edge.v, to: edge.w, points: graph.edge(edge).points }));
  postMessage({ width, height, nodes, edges } satisfies LayoutReply);
};
