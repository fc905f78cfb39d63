// Sixteen-pixel icons, drawn as strokes. They stand beside words and are never the only label.
const SHAPES = {
  overview: "M2.5 9.5 5 6l3 3 2.5-4.5 3 5.5M2.5 13.5h11",
  queues: "M2.5 4h11M2.5 8h11M2.5 12h7",
  dead: "M8 2.5 14 13H2L8 2.5ZM8 6.5v3M8 11.2v.1",
  tasks: "M2.5 4.5l1.2 1.2L6 3.2M2.5 10.7l1.2 1.2L6 9.4M8.5 4.5h5M8.5 10.7h5",
  workflows: "M2.5 6h4v4h-4zM10 2.5h3.5V6H10zM10 10h3.5v3.5H10zM6.5 8H8.3V4.3H10M8.3 8v3.7H10",
  workers: "M4 4h8v8H4zM6.5 1.8V4M9.5 1.8V4M6.5 12v2.2M9.5 12v2.2M1.8 6.5H4M1.8 9.5H4M12 6.5h2.2M12 9.5h2.2",
  schedules: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 4.8V8l2.2 1.6",
  history: "M2.5 8a5.5 5.5 0 1 0 1.8-4.1L2.5 5.5M2.5 2.5v3h3M8 5v3.2l2 1.3",
  traces: "M2.5 3.5h6M5 8h6M8 12.5h5.5",
  query: "M5 5 2 8l3 3M11 5l3 3-3 3M9.3 3.5 6.7 12.5",
  pipelines: "M2.5 8h3M10.5 8h3M5.5 5.5h5v5h-5zM2.5 3v10M13.5 3v10",
  operations: "M3 8a5 5 0 0 1 8.5-3.5L13 6M13 3v3h-3M13 8a5 5 0 0 1-8.5 3.5L3 10M3 13v-3h3",
  audit: "M4 2.5h6l2.5 2.5v8.5h-8.5zM6 7h4.5M6 10h4.5",
  broker: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5v.1M5 11v.1",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.3 10.3l3.2 3.2",
  right: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
} as const;

export type IconName = keyof typeof SHAPES;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
      <path d={SHAPES[name]} />
    </svg>
  );
}
