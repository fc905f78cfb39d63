// What flows, over the last five minutes: messages per second, and the backlog.
import { rate } from "../format";
import { type Total, TOTALS } from "../queues";
import { LiveChart } from "./live-chart";
import { Card } from "./ui";

/** `of` is what the samples belong to, for those who cannot see the charts. */
export function Flow({ of, samples }: { of: string; samples: readonly Total[] }) {
  const times = samples.map((sample) => sample.at / 1000);
  return (
    <div class="columns">
      <Card title="Messages per second">
        <LiveChart
          label={`Messages per second in ${of} over the last five minutes`}
          times={times}
          span={TOTALS}
          format={rate}
          series={[
            { name: "Pushed", color: "accent", values: samples.map((sample) => sample.pushed) },
            { name: "Acknowledged", color: "second", values: samples.map((sample) => sample.acked) },
          ]}
        />
      </Card>
      <Card title="Backlog">
        <LiveChart label={`Messages of ${of} that are not settled, over the last five minutes`} times={times} span={TOTALS} series={[{ name: "Not settled", color: "accent", values: samples.map((sample) => sample.backlog) }]} />
      </Card>
    </div>
  );
}
