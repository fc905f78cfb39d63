// A line of the last minute, without axes.
export function Spark({ values, label }: { values: readonly number[]; label: string }) {
  const [width, height] = [90, 22];
  const highest = Math.max(1, ...values);
  const step = width / 59;
  const start = width - (values.length - 1) * step;
  const points = values.map((value, index) => `${(start + index * step).toFixed(1)},${(height - 2 - (value / highest) * (height - 4)).toFixed(1)}`);
  return (
    <svg class="spark" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      {points.length > 1 ? <polyline points={points.join(" ")} /> : null}
    </svg>
  );
}
