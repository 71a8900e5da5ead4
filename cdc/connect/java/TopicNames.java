package headwater.connect.v1;

import io.debezium.relational.TableId;
import io.debezium.schema.SchemaTopicNamingStrategy;
import io.debezium.spi.schema.DataCollectionId;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * Names the topics of some tables as the configuration does, and all other topics as Debezium does.
 *
 * <p>Debezium replaces each character that Kafka refuses by an underscore, so that tables of
 * different names can share a topic.
 *
 * <p>Properties of the connector: {@code named.0.schema} and {@code named.0.table} a table, {@code
 * named.0.topic} its topic; then {@code named.1.schema} and so on.
 */
public final class TopicNames extends SchemaTopicNamingStrategy {

    private final Map<TableId, String> named = new HashMap<>();

    public TopicNames(Properties properties) {
        super(properties);
        for (int number = 0; properties.containsKey("named." + number + ".topic"); number++) {
            String begin = "named." + number + ".";
            String schema = properties.getProperty(begin + "schema");
            String table = properties.getProperty(begin + "table");
            named.put(new TableId("", schema, table), properties.getProperty(begin + "topic"));
        }
    }

    @Override
    public String dataChangeTopic(DataCollectionId id) {
        if (id instanceof TableId table) {
            String topic = named.get(new TableId("", table.schema(), table.table()));
            if (topic != null) {
                return topic;
            }
        }
        return super.dataChangeTopic(id);
    }
}
