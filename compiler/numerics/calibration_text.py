"""The built-in calibration text: original prose, dialogue, code, data and a few lines in other languages.

It is what KV scales are measured on when a user gives no text of their own, so it changes subject and form
often: a channel that only wakes up for code or for digits must be seen. Changing a character changes the
plans of every model built without --calibration; its sha256 is kept in each of them.
"""

from __future__ import annotations

CALIBRATION_TEXT = '''\
The lighthouse at the end of the breakwater was automated years ago, but somebody still climbs it every
Thursday. She carries a rag, a bottle of spirits and a notebook, and she wipes the salt from the lens before
it can etch the glass. The climb takes eleven minutes when the wind is from the west and nearly twenty when
it is not. From the gallery one sees the whole bay: the ferry, the two dredgers, the oyster beds marked with
birch poles, and on clear mornings a grey line that is either the far shore or the fog in front of it.

"You could put a camera up there," her brother said. "A brush on a motor. It would cost less than your knees."

"It would," she agreed, and went on lacing her boots.

## How a canal lock works

A lock is a chamber with a gate at each end. To lift a boat, close the lower gate, open the paddles of the
upper one, and let water run in until the levels match; only then will the upper gate move, because a
difference of ten centimetres over a gate of twenty square metres is a force of about twenty kilonewtons.
Three things go wrong:

1. The boat is tied too short, and hangs from its own ropes as the water falls.
2. The paddles are opened at once, and the turbulence throws the bow against the wall.
3. Somebody forgets the lower paddle. The chamber then never fills, however long one waits.

```python
from dataclasses import dataclass


@dataclass(frozen=True)
class Chamber:
    length_m: float
    width_m: float
    level_m: float

    def volume(self, target_m: float) -> float:
        """Cubic metres that must flow to bring the chamber to `target_m`."""
        return self.length_m * self.width_m * abs(target_m - self.level_m)


def seconds_to_fill(chamber: Chamber, target_m: float, paddle_area_m2: float, loss: float = 0.62) -> float:
    head = abs(target_m - chamber.level_m)
    if head == 0:
        return 0.0
    speed = loss * (2 * 9.81 * head) ** 0.5  # falls as the levels meet, hence the factor of two
    return 2 * chamber.volume(target_m) / (paddle_area_m2 * speed)


for head in (0.5, 1.0, 2.4, 3.75):
    print(f"{head:4.2f} m: {seconds_to_fill(Chamber(21.9, 4.3, 0.0), head, 0.9):6.1f} s")
```

Bread is mostly patience. Mix 500 g of flour, 350 g of water, 10 g of salt and a spoonful of starter; cover
it, leave it, fold it every half hour, and stop when the dough holds its shape and trembles like something
alive. A hot oven (250 °C, falling to 220 °C after a quarter of an hour) does the rest. If the crumb is
dense, the dough was cold; if the loaf spreads, it was late. Write down the temperature of the kitchen, not
only that of the oven.

{"order": 48213, "placed": "2021-11-03T08:45:12Z", "customer": {"name": "R. Okonkwo", "city": "Ibadan",
"vip": false},  "lines": [{"sku": "BR-0071", "quantity": 3, "price": 12.50}, {"sku": "XK-9", "quantity": 1,
"price": 249.0}],  "discount": null, "total": 286.5, "notes": "ring twice; leave with the neighbour at no.
14 if nobody answers"}

Why does the moon look larger near the horizon? It does not become larger: hold a coin at arm's length and
compare. The usual explanations appeal to context, since on the horizon there are houses and trees of known
size beside it, or to the flattened dome that people imagine when they think of the sky. Neither is quite
satisfactory. Astronauts in orbit report the illusion too, with no trees at all, and it disappears for most
observers who look at the moon upside down between their own legs, which is undignified but easily tried.

```c
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes written, or 0 when `capacity` is too small. The buffer is never left half-written. */
size_t encode_varint(uint64_t value, uint8_t *out, size_t capacity) {
    uint8_t bytes[10];
    size_t count = 0;
    do {
        bytes[count] = (uint8_t)(value & 0x7F);
        value >>= 7;
        if (value != 0) bytes[count] |= 0x80;
        ++count;
    } while (value != 0);
    if (count > capacity) return 0;
    memcpy(out, bytes, count);
    return count;
}
```

User: My train leaves at 17:42 and the walk to the station takes 13 minutes. When do I have to be out of the
door?
Assistant: To be there on the minute, leave at 17:29. I would plan for 17:20, since platforms change
and shoes come undone.
User: And if I cycle?
Assistant: At 15 km/h you need about 5 minutes for what takes
13 on foot, plus two to lock the bicycle: 17:35 at the very latest.

Der Kartograph zeichnete den Fluss so, wie er vor dem Hochwasser verlaufen war, weil niemand ihm gesagt
hatte, dass die Brücke nun auf trockenem Land stand. Les enfants, eux, avaient déjà trouvé le nouveau gué et
n'en parlaient à personne. El molino siguió girando tres días más, hasta que el agua encontró otro camino.
Il mugnaio, più paziente di tutti, cominciò a piantare fagioli nel letto asciutto. Мельник ничего не сказал,
только снял шапку.
川は静かに向きを変え、村人は新しい橋を架けることにした。
这座桥用了两年才建成，第三年春天又被冲走了。
يجري النهر حيث يشاء. नदी अपना रास्ता स्वयं चुनती है।

| year | rainfall (mm) | harvest (t/ha) | price (per kg) |
|------|---------------|----------------|----------------|
| 1987 | 612           | 4.1            | 0.31           |
| 1988 | 388           | 2.2            | 0.58           |
| 1989 | 701           | 4.4            | 0.29           |
| 1990 | 655           | 3.9            | 0.33           |

Theorem. There are infinitely many primes that leave remainder 3 when divided by 4. Proof. Suppose that p_1,
..., p_n are all of them, and let N = 4 p_1 p_2 ... p_n - 1. N is odd and leaves remainder 3, so it cannot
be a product of primes that all leave remainder 1; some prime q = 3 (mod 4) divides it. But q divides 4 p_1
... p_n as well if it is among the list, hence divides 1: a contradiction. []

The patient, a 54-year-old carpenter, reported three weeks of numbness in the ring and little fingers of the
left hand, worse at night and after driving. There was no neck pain. Grip strength was reduced; tapping
behind the inner epicondyle reproduced the tingling. Nerve conduction was slowed across the elbow. He was
advised to pad the elbow, to avoid leaning on the workbench, and to sleep with the arm straight; at six
weeks he had recovered almost completely.

To: all tenants of 9-17 Mill Lane
Subject: water off on Monday
Please note that the water will be turned off
on Monday from 09:00 until about 12:30 while the riser on the second floor is replaced. Fill a kettle
beforehand!!! Boilers will refill by themselves :-) but run the taps for a minute afterwards, because the
first litre may be brown. Questions? Call Jo on 0555 0142 or write to jo@mill-lane.example.

SELECT ship.name, berth.number, SUM(cargo.mass_t) AS mass_t
FROM ship JOIN berth ON berth.id = ship.berth_id LEFT JOIN cargo ON cargo.ship_id = ship.id
WHERE ship.due < DATE '1893-03-17' AND NOT ship.departed
GROUP BY ship.name, berth.number HAVING SUM(cargo.mass_t) > 120.5 ORDER BY mass_t DESC LIMIT 20;

In the spring of the second year the council voted, by a majority of one, to sell the observatory. Nobody
had looked through the telescope since the street lamps were changed; the dome leaked; and the land was
wanted for a swimming pool. The old astronomer did not argue. He asked only for the clock, a plain regulator
with a mercury pendulum, which had lost four tenths of a second since the day it was hung. "You may keep
your stars," he said to the mayor, who had expected a longer speech. "They will be there. The clock has to
be wound."

<section id="faq"><h2>Returns &amp; refunds</h2> <p class="note">Items can be returned within <strong>30
days</strong>. <a href="/returns?ref=faq#start">Begin here</a>.</p> <ul><li>Keep the box.</li><li>Postage is
free above 40 &euro;.</li></ul></section>

fn longest_run(values: &[i32]) -> Option<(i32, usize)> {
    let mut best: Option<(i32, usize)> = None;
    let mut index = 0;
    while index < values.len() {
        let begin = index;
        while index < values.len() && values[index] == values[begin] {
            index += 1;
        }
        if best.map_or(true, |(_, length)| index - begin > length) {
            best = Some((values[begin], index - begin));
        }
    }
    best
}

Rivers carry their history in their bends. A young stream cuts straight down; an old one wanders, eating the
outer bank of each curve and leaving sand on the inner one, until two bends meet and the loop between them
is abandoned as a crescent of still water. From the air a flood plain is covered with these scars, each
fainter than the last, and a patient reader can put them in order. Engineers who straighten such a river for
the sake of shipping usually find that it becomes steeper and faster, digs its bed, drops the water table
beneath the meadows on both sides, and floods the first town below the works. The cheapest levee, it has
been said more than once, is a field that nobody minds losing.

Q: What is the difference between weather and climate?
A: Climate is what you pack for; weather is what you wear.

2024-02-29 23:59:58,912 WARN  [pump-3] pressure 6.21 bar above limit 6.00 (sensor 0x1F, retry 2/5)
2024-02-29 23:59:59,040 INFO  [pump-3] valve opened to 35 %
2024-03-01 00:00:01,377 ERROR [scheduler] job "rotate-logs" missed its slot by 1377 ms; next run in 3600 s

$ git log --oneline -3 && make test
a41c9e7 pump: close the valve before reading the sensor
09bd112 docs: say which unit a limit is in
e5f0c3a tests: leap day
ok 214 tests, 0 failures, 3.81 s

Once there was a fox who kept accounts. Every evening he wrote down what he had eaten and what it had cost
him in running, and every morning he read the figures and sighed. The rabbits, who could not write, did not
know that they were expensive, and the mice did not know that they were cheap; but within a year they could
all have told you, from where the fox chose to sleep, exactly what stood in his book.
'''
