// Small charts without axes, in a row of a table.
const [WIDTH, HEIGHT] = [88, 22];

/** A line of the last minute. */
export function Spark({ values, label }: { values: readonly number[]; label: string }) {
  const highest = Math.max(1, ...values);
  const step = WIDTH / 59;
  const start = WIDTH - (values.length - 1) * step;
  const y = (value: number): string => (HEIGHT - 2 - (value / highest) * (HEIGHT - 5)).toFixed(1);
  const points = values.map((value, index) => `${(start + index * step).toFixed(1)},${y(value)}`).join(" ");
  const isDrawn = values.length > 4 && values.some((value) => value > 0);
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label}>
      <line x1="0" x2={WIDTH} y1={HEIGHT - 1.5} y2={HEIGHT - 1.5} />
      {isDrawn ? (
        <>
          <polygon points={`${start.toFixed(1)},${HEIGHT - 2} ${points} ${WIDTH},${HEIGHT - 2}`} />
          <polyline points={points} />
        </>
      ) : null}
    </svg>
  );
}

/** Counts of equal steps as bars. */
export function Trend({ values, label }: { values: readonly number[]; label: string }) {
  const highest = Math.max(1, ...values);
  const step = 96 / Math.max(1, values.length);
  return (
    <svg class="spark" width={96} height={HEIGHT} viewBox={`0 0 96 ${HEIGHT}`} role="img" aria-label={label}>
      {values.map((value, index) => {
        const height = value ? Math.max(2, (value / highest) * (HEIGHT - 3)) : 1;
        return <rect key={index} class={value ? "" : "none"} x={index * step} y={HEIGHT - 1 - height} width={Math.max(1, step - 1)} height={height} />;
      })}
    </svg>
  );
}
